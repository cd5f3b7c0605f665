"""A running retriever on the real in-process ports, and its settings."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from protos import retriever_pb2 as pb
from protos.retriever_pb2_grpc import RetrieverServiceStub
from services.cache_maintainer.admission import admit
from services.retriever.service import RetrieverService
from shared.domain.types import IndexItem, Plan, Request, Vector, owner_key, vector_bytes
from shared.runtime import rpc
from shared.runtime.clock import ManualClock
from shared.runtime.rpc_types import plan_from_proto, request_to_proto
from shared.runtime.settings import Settings
from shared.service import running
from shared.service.backends import Backends
from tests.unit.cached import ENCODER, MODEL, finished_job


@dataclass
class House:
    """A running retriever, its ports and a client."""

    service: RetrieverService
    backends: Backends
    stub: RetrieverServiceStub

    async def cache(self, asked: Request, vector: Vector, **more: Any) -> str:
        """An entry as the maintainer writes it."""
        job = await finished_job(self.backends, asked, vector, **more)
        entry = admit(job)
        assert entry is not None
        await self.backends.catalog.entries.add(entry, {"whole": job.vector})
        owner = owner_key(entry.scope, entry.tenant, entry.user)
        await self.backends.index.add([IndexItem(entry.id, {"whole": vector}, str(entry.compat), owner, ENCODER)])
        return entry.id

    async def plan(self, asked: Request, vector: Vector | None, **more: Any) -> Plan:
        message = pb.PlanRequest(
            request=request_to_proto(asked),
            tenant=asked.tenant,
            seed_given=more.pop("seed_given", False),
            vector=vector_bytes(vector) if vector is not None else b"",
            encoder_hash=more.pop("encoder", ENCODER),
            model=more.pop("model", "noop"),
            **more,
        )
        return plan_from_proto((await rpc.call(self.stub.Plan, message, timeout_s=5)).plan)


@contextlib.asynccontextmanager
async def house(settings: Settings, clock: ManualClock | None = None) -> AsyncIterator[House]:
    service = RetrieverService()
    async with (
        running([service], settings, clock=clock) as process,
        grpc.aio.insecure_channel(process.address) as channel,
    ):
        yield House(service, process.context.backends, RetrieverServiceStub(channel))


@pytest.fixture
def noop(settings: Settings) -> Settings:
    return settings.model_copy(update={"large": MODEL, "lookup_timeout_s": 0.3, "sample_predicted_misses": 0.0})
