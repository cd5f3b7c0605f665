"""A word that nobody else uses goes through every path of a request that leaves nothing, or nothing for others, and is
then looked for wherever text ends up."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from prometheus_client import generate_latest

from protos import cache_maintainer_pb2, global_monitor_pb2
from protos.cache_maintainer_pb2_grpc import CacheMaintainerServiceStub
from protos.global_monitor_pb2_grpc import GlobalMonitorServiceStub
from shared.domain.errors import AfterimageError
from tests.attacks.conftest import Guarded

pytestmark = pytest.mark.asyncio(loop_scope="session")

WRONG: tuple[dict[str, Any], ...] = (
    {"size": (63, 8)},
    {"steps": 0},
    {"guidance": float("nan")},
    {"from_job": "{}"},
    {"quality": "{}"},
    {"image": b"{}"},
)
"""Requests that are refused, each at another place; {} stands for the word."""


async def ask(guarded: Guarded, word: str, options: dict[str, Any]) -> list[str]:
    """Generate, repeat, vary, cancel and fail over both interfaces. Return the ids of the jobs."""
    prompt, base = f"a red {word} in the snow", guarded.house.process.http_address
    async with guarded.client("mallory") as client:
        made = await client.generate(prompt, negative_prompt=word, user=word, steps=10, seed=5, **options)
        await guarded.house.settled(made)
        repeat = await client.generate(prompt, negative_prompt=word, user=word, steps=10, seed=5, **options)
        await client.plan(f"{prompt} at night", steps=10, **options)
        await client.cancel(made.job.id)
        for wrong in WRONG:
            filled = {name: _filled(value, word) for name, value in wrong.items()}
            with pytest.raises(AfterimageError):
                await client.generate(prompt, user=word, **{**options, **filled})
    headers = {"authorization": f"Bearer {guarded.keys['mallory']}", "user-agent": word, "x-request-id": word}
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=20.0) as web:
        body = {"prompt": prompt, "user": word, "num_inference_steps": 10, **options}
        answer = await web.post("/v1/images/generations", json=body)
        assert answer.status_code == 200
        for path, sent in ((f"/v1/images/{word}", body), ("/v1/images/generations", {**body, word: 1})):
            assert (await web.post(path, json=sent)).is_client_error
    return [made.job.id, repeat.job.id]


def _filled(value: Any, word: str) -> Any:
    if isinstance(value, bytes):
        return value.replace(b"{}", word.encode())
    return value.format(word) if isinstance(value, str) else value


async def said(guarded: Guarded) -> str:
    """Return what the services tell operators without naming an entry."""
    channel = guarded.house.process.context.channel
    monitor: Any = GlobalMonitorServiceStub(channel("global_monitor"))
    stream = monitor.Allocation(global_monitor_pb2.AllocationRequest())
    answer = await anext(aiter(stream))
    stream.cancel()
    return f"{answer}{generate_latest().decode()}"


def rows_with(word: str, folder: Path) -> set[str]:
    """Return the tables of the catalog that have the word, and the other files of the data directory that do."""
    found: set[str] = set()
    for path in folder.rglob("*"):
        if path.is_file() and not path.name.startswith("catalog.sqlite3") and word.encode() in path.read_bytes():
            found.add(path.name)
    with contextlib.closing(sqlite3.connect(f"file:{folder / 'catalog.sqlite3'}?mode=ro", uri=True)) as catalog:
        for (table,) in catalog.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            if any(word in repr(row) for row in catalog.execute(f'SELECT * FROM "{table}"')):
                found.add(table)
    return found


@pytest.mark.parametrize(
    ("word", "options", "tables"),
    [
        ("quagga", {"cache": "off"}, {"jobs"}),
        ("thylacine", {"scope": "private"}, {"jobs", "entries"}),
    ],
)
async def test_a_word_stays_with_its_caller(
    guarded: Guarded, word: str, options: dict[str, Any], tables: set[str]
) -> None:
    settings = guarded.house.process.context.settings
    with structlog.testing.capture_logs() as logs:
        ids = await ask(guarded, word, options)
        await asyncio.sleep(0.2)  # what is logged after the answers
    assert word not in repr(logs)
    assert word not in await said(guarded)
    assert rows_with(word, settings.data_dir) == tables
    maintainer: Any = CacheMaintainerServiceStub(guarded.house.process.context.channel("cache_maintainer"))
    page = await maintainer.Inspect(cache_maintainer_pb2.InspectRequest(page_size=1000), timeout=10.0)
    inspected = {entry.id for entry in page.entries}
    assert (ids[0] in inspected) == ("entries" in tables)
    for other in ("alice", "bob", "eve"):
        async with guarded.client(other) as client:
            plan = (await client.plan(f"a red {word} in the snow", steps=10, seed=5))[0].job.plan
            assert not set(ids) & {one.entry_id for one in plan.candidates}
            assert plan.start_step == 0
            assert word not in repr(await client.list_jobs())
