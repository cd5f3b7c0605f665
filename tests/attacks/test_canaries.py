"""A word that nobody else uses goes through every path of a request that leaves nothing, or nothing for others, and is
then looked for wherever text ends up."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sqlite3
import traceback
from collections import deque
from collections.abc import Sequence
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import cachetools
import httpx
import pytest
import structlog
from prometheus_client import generate_latest

from protos import cache_maintainer_pb2, global_monitor_pb2
from protos.cache_maintainer_pb2_grpc import CacheMaintainerServiceStub
from protos.global_monitor_pb2_grpc import GlobalMonitorServiceStub
from services.embedder.encoder import Encoder
from services.gpu_worker.families.noop import NoopFamily
from services.retriever.service import RetrieverService
from shared.blobs.filesystem import FilesystemBlobs
from shared.catalog import Jobs
from shared.domain.errors import AfterimageError, BlobUnavailableError, UnavailableError
from tests.attacks.conftest import Guarded
from tests.attacks.test_console import signed_in

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
    """Generate, repeat, vary, stream, cancel and fail over both interfaces, begin with an image, and search. Return the
    ids of the first job and its repeat."""
    prompt, base = f"a red {word} in the snow", guarded.house.process.http_address
    async with guarded.client("mallory") as client:
        made = await client.generate(prompt, negative_prompt=word, user=word[::-1], steps=10, seed=5, **options)
        await guarded.house.settled(made)
        repeat = await client.generate(prompt, negative_prompt=word, user=word[::-1], steps=10, seed=5, **options)
        await client.plan(f"{prompt} at night", steps=10, **options)
        await client.generate_images(f"{prompt} twice", 2, user=word[::-1], steps=10, **options)
        started: dict[str, Any] = {"image": made.png, "strength": 0.5, "steps": 10, **options}
        await client.generate(f"{prompt} again", user=word[::-1], **started)
        async for _ in client.generate_stream(
            f"{prompt} in steps", previews=True, user=word[::-1], steps=10, **options
        ):
            pass
        await client.cancel(made.job.id)
        for wrong in WRONG:
            filled = {name: _filled(value, word) for name, value in wrong.items()}
            with pytest.raises(AfterimageError):
                await client.generate(prompt, user=word[::-1], **{**options, **filled})
    headers = {"authorization": f"Bearer {guarded.keys['mallory']}", "user-agent": word, "x-request-id": word}
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=20.0) as web:
        body = {"prompt": prompt, "user": word[::-1], "num_inference_steps": 10, **options}
        answer = await web.post("/v1/images/generations", json=body)
        assert answer.status_code == 200
        for path, sent in ((f"/v1/images/{word}", body), ("/v1/images/generations", {**body, word: 1})):
            assert (await web.post(path, json=sent)).is_client_error
    async with signed_in(guarded, "mallory") as (browser,):
        assert (await browser.post("similar", json={"prompt": prompt})).status_code == 200
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


CONTAINERS = (dict, list, tuple, set, frozenset, deque, cachetools.Cache)


def remembers(service: Any, word: str) -> bool:
    """Return whether the word stands in the memory of a service, or of a port: in what its own objects refer to, and
    not in what it shares with others."""
    home, seen, left = type(service).__module__.rpartition(".")[0], set[int](), [service]
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, type):
            continue
        seen.add(id(one))
        if isinstance(one, str | bytes):
            if word in str(one):
                return True
        elif isinstance(one, CONTAINERS) or type(one).__module__.startswith((home, "shared.domain")):
            left += gc.get_referents(one)
    return False


def rendered(logs: Sequence[Any]) -> str:
    """Return what these lines say, with the tracebacks and causes of their errors."""
    errors = [line["exc_info"] for line in logs if isinstance(line.get("exc_info"), BaseException)]
    return repr(logs) + "".join("".join(traceback.format_exception(error)) for error in errors)


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
    for text in (word, word[::-1]):
        assert text not in rendered(logs)
        assert text not in await said(guarded)
    assert rows_with(word, settings.data_dir) == tables
    services = {one.name: one for one in guarded.house.process.services}
    searched: tuple[Any, ...] = (services["match_predictor"], guarded.house.backends.index)
    assert remembers(services["global_monitor"], "noop")
    for one in (*searched, services["global_monitor"]):
        assert not remembers(one, word)
        assert remembers(one, ids[0]) == (one in searched and "entries" in tables)
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


@pytest.mark.parametrize(("word", "options"), [("takahe", {"cache": "off"}), ("kakapo", {"scope": "private"})])
@pytest.mark.parametrize(
    ("failing", "method", "error"),
    [
        (Encoder, "texts", MemoryError("no room")),
        (RetrieverService, "_start", UnavailableError("the index is away")),
        (Jobs, "accept", ZeroDivisionError("a bug")),
        (NoopFamily, "step", RuntimeError("the device failed")),
        (FilesystemBlobs, "put", BlobUnavailableError("the store is away", retry_after_s=0.1)),
        (Jobs, "finish", UnavailableError("the catalog is away")),
    ],
)
async def test_no_failure_tells_the_word(
    guarded: Guarded,
    monkeypatch: pytest.MonkeyPatch,
    word: str,
    options: dict[str, Any],
    failing: type[Any],
    method: str,
    error: Exception,
) -> None:
    """Each call of one part fails, until the client has its answer or gives up half a second after the failure."""
    broken = AsyncMock(side_effect=error) if iscoroutinefunction(getattr(failing, method)) else Mock(side_effect=error)
    with structlog.testing.capture_logs() as logs, monkeypatch.context() as patch:
        patch.setattr(failing, method, broken)
        async with guarded.client("mallory") as client:
            asked: dict[str, Any] = {"negative_prompt": word, "user": word[::-1], "steps": 4, **options}
            answer = asyncio.create_task(client.generate(f"a red {word} by {method}", **asked))
            async with asyncio.timeout(20.0):
                while not broken.called:
                    await asyncio.sleep(0.02)
            await asyncio.wait([answer], timeout=0.5)
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)
    assert logs
    assert word not in rendered(logs)
    assert word[::-1] not in rendered(logs)
