"""The cache, as operators see it: what the maintainer holds, and what the last jobs started from."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from protos import cache_maintainer_pb2 as pb
from protos.cache_maintainer_pb2_grpc import CacheMaintainerServiceStub
from services.gateway.console.job_json import summary
from shared.domain.types import Job, JobState
from shared.runtime import rpc
from shared.service import Context

TIMEOUT_S = 10.0
PAGES = 10
"""Most pages of 100 entries whose states are counted by model and codec."""
JOBS = 500
"""Last jobs of all callers whose starts are counted."""
KEPT_S = 3.0
"""Seconds for which one answer serves all operators."""


def as_json(message: Message) -> dict[str, Any]:
    """Return the message as JSON, with the names of its fields and with zeros; 64-bit numbers are texts."""
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


class Operations:
    """Answers to operators, each kept for KEPT_S."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._asking = asyncio.Lock()
        self._cache: dict[str, Any] = {}
        self._until = float("-inf")

    async def cache(self) -> dict[str, Any]:
        """Return counts of the cache, of its entries and of the last jobs. Raises the maintainer's error."""
        async with self._asking:
            if time.monotonic() >= self._until:
                self._cache = await self._read()
                self._until = time.monotonic() + KEPT_S
        return self._cache

    async def _read(self) -> dict[str, Any]:
        stub = self._context.stub(CacheMaintainerServiceStub, "cache_maintainer")
        stats = await rpc.call(stub.Stats, pb.StatsRequest(), timeout_s=TIMEOUT_S)
        quality = await rpc.call(stub.Quality, pb.QualityRequest(), timeout_s=TIMEOUT_S)
        jobs, _ = await self._context.backends.catalog.jobs.list(limit=JOBS)
        return {
            "stats": as_json(stats),
            "entries": await self._entries(),
            "starts": starts(jobs),
            "quality": as_json(quality),
        }

    async def _entries(self) -> dict[str, Any]:
        """Return bytes of states and images by model, by codec and by K, of the newest entries."""
        token, counted = "", 0
        by_model, by_codec, by_step = Counter[str](), Counter[str](), Counter[int]()
        for _ in range(PAGES):
            page, token = await self._context.backends.catalog.entries.page(100, token)
            for entry in page:
                counted += 1
                for state in entry.states:
                    by_model[entry.model] += state.bytes
                    by_codec[state.codec.partition("@")[0]] += state.bytes
                    by_step[state.step] += state.bytes
            if not token:
                break
        bytes_by = {"model": dict(by_model), "codec": dict(by_codec), "step": dict(by_step)}
        return {"counted": counted, "more": bool(token), "bytes": bytes_by}


def starts(jobs: Iterable[Job]) -> dict[str, Any]:
    """Return how many of the succeeded jobs started from what, by source and by relation, and their steps."""
    by_source, by_relation = Counter[str](), Counter[str]()
    steps = saved = count = 0
    for job in jobs:
        if job.state is not JobState.SUCCEEDED:
            continue
        row = summary(job)
        count += 1
        steps += row["steps"]
        saved += row["steps_saved"]
        by_source[row["source"]] += 1
        if row["source"] not in ("noise", "upload"):
            by_relation["repeat" if row["source"] == "exact" else row["relation"] or "unknown"] += 1
    return {
        "jobs": count,
        "steps": steps,
        "steps_saved": saved,
        "by_source": dict(by_source),
        "by_relation": dict(by_relation),
    }
