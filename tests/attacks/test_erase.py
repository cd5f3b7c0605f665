"""Somebody asks to be forgotten: what was erased is found nowhere, and nobody erases what is somebody else's."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from typer.testing import CliRunner

from protos import cache_maintainer_pb2, gateway_pb2
from protos.cache_maintainer_pb2_grpc import CacheMaintainerServiceStub
from protos.gateway_pb2_grpc import GatewayServiceStub
from services.cli.app import app
from services.gateway import erasing
from shared.client import Accepted
from shared.client.credentials import API_KEY
from shared.domain.errors import (
    BlobUnavailableError,
    CancelledError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
)
from shared.domain.identity import Rate, Role
from shared.domain.types import IndexFilter, PlanSource, vector_from
from shared.runtime import rpc
from shared.runtime.audit import FILE, REFUSALS
from shared.runtime.settings import Settings
from tests.attacks.conftest import Guarded
from tests.attacks.test_canaries import rows_with
from tests.flows.house import house

pytestmark = pytest.mark.asyncio(loop_scope="session")


@contextlib.asynccontextmanager
async def eraser(guarded: Guarded, subject: str) -> Any:
    """Yield a function that erases as this caller and returns the numbers by kind."""
    async with grpc.aio.insecure_channel(guarded.address) as channel:
        stub: Any = GatewayServiceStub(channel)
        bearer = (("authorization", f"Bearer {guarded.keys[subject]}"),)

        async def erase(**what: Any) -> dict[str, int]:
            asked = gateway_pb2.EraseRequest(**what)
            reply = await rpc.call(stub.Erase, asked, timeout_s=20.0, metadata=bearer)
            assert not reply.erasure.left
            return {one.kind: one.count for one in reply.erasure.removed}

        yield erase


async def new_caller(guarded: Guarded, subject: str, tenant: str = "acme") -> None:
    if subject not in guarded.keys:
        await guarded.issue(subject, tenant, [Role.USER])


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20.0):
        while not await holds():
            await asyncio.sleep(0.02)


def without_keys(folder: Path, tiny: Path) -> Settings:
    """Settings of a server of its own, on which everybody is anonymous."""
    return Settings(
        data_dir=folder, listen="127.0.0.1:0", metrics_listen="", large="noop:", encoder=str(tiny / "clip"),
        torch_threads=1, check_share=0.0,
    )  # fmt: skip


def vacuum(folder: Path) -> None:
    """Run the commands of docs/how-to/erase.md."""
    with contextlib.closing(sqlite3.connect(folder / "catalog.sqlite3", timeout=20.0)) as catalog:
        catalog.execute("VACUUM")
        catalog.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def test_an_erased_word_is_found_nowhere_and_starts_nothing(guarded: Guarded) -> None:
    await new_caller(guarded, "gone")
    backends, folder = guarded.house.backends, guarded.house.process.context.settings.data_dir
    prompt = "a red axolotl in the snow"
    with structlog.testing.capture_logs() as logs:
        async with guarded.client("gone") as client, eraser(guarded, "gone") as erase:
            first = await client.generate(prompt, steps=10, seed=5)
            await guarded.house.settled(first)
            vector = vector_from((await backends.catalog.jobs.get(first.job.id)).vector)
            later = await client.generate("a red fox in the snow", steps=10, seed=6)  # its plan names the first
            await guarded.house.settled(later)  # its entry descends from the first
            assert first.job.id in repr(later.plan.candidates)
            assert rows_with("axolotl", folder) >= {"jobs", "entries"}
            removed = await erase(job_id=first.job.id)
            assert removed["jobs"] == removed["entries"] == removed["pictures/"] == 1
            assert removed["states"] == removed["states/"] + 1 > 2
            assert removed["vectors"] >= 1
            assert removed["links"] == 2  # the plan and the entry
            assert not rows_with("axolotl", folder)
            assert not rows_with(first.job.id, folder) - {"erasures", FILE}
            hits = await backends.index.search("whole", vector, IndexFilter(), 100)
            assert first.job.id not in {hit.entry_id for hit in hits}
            assert not [blob async for blob in backends.blobs.list() if first.job.id in blob.key]
            for read in (client.get_job, client.get_picture):
                with pytest.raises(NotFoundError):
                    await read(first.job.id)
            with pytest.raises(NotFoundError):
                await client.generate("a wolf", steps=10, from_job=first.job.id)
            assert "axolotl" not in repr(await client.list_jobs())
            assert "axolotl" not in repr(await client.get_job(later.job.id))
            again = await client.generate(prompt, steps=10, seed=5)
            assert again.plan.source is not PlanSource.EXACT
            assert first.job.id not in repr(again.plan)
            await guarded.house.settled(again)
            await erase(job_id=again.job.id)
    assert "axolotl" not in repr(logs)
    maintainer: Any = CacheMaintainerServiceStub(guarded.house.process.context.channel("cache_maintainer"))
    assert "axolotl" not in repr(await maintainer.Inspect(cache_maintainer_pb2.InspectRequest(page_size=100)))
    vacuum(folder)
    for path in folder.rglob("*"):
        assert not path.is_file() or b"axolotl" not in path.read_bytes(), path


async def test_what_others_made_of_it_loses_its_root_and_its_copies(guarded: Guarded) -> None:
    await new_caller(guarded, "source")
    backends = guarded.house.backends
    async with guarded.client("source") as source, guarded.client("bob") as bob, eraser(guarded, "source") as erase:
        first = await source.generate("a green gondola by night", steps=10, seed=5)
        await guarded.house.settled(first)
        copy = await bob.generate("a green gondola by night", steps=10, seed=5)
        assert copy.plan.source is PlanSource.EXACT
        grown = await bob.generate("a green gondola by night", steps=10, seed=6, variation="same")
        await guarded.house.settled(grown)
        entry = (await backends.catalog.entries.by_ids([grown.job.id]))[grown.job.id]
        assert entry.root == first.job.id
        removed = await erase(job_id=first.job.id)
        assert removed["repeats"] == 1
        entry = (await backends.catalog.entries.by_ids([grown.job.id]))[grown.job.id]
        assert entry.root_ids == (grown.job.id,)
        row = await backends.catalog.jobs.get(grown.job.id)
        assert first.job.id not in repr(row.plan)
        with pytest.raises(NotFoundError, match="was erased"):
            await bob.get_picture(copy.job.id)
        assert (await bob.get_picture(grown.job.id)).png == grown.png  # bob's own image stays
        with pytest.raises(NotFoundError):
            await bob.generate("a wolf", steps=10, from_job=copy.job.id)


async def test_a_users_data_goes_and_that_of_a_namesake_elsewhere_stays(guarded: Guarded) -> None:
    await new_caller(guarded, "quitter")
    async with guarded.client("quitter") as leaver, guarded.client("eve") as eve, eraser(guarded, "chief") as erase:
        mine = [await leaver.generate(f"a blue heron {number}", steps=10, user="ann") for number in range(2)]
        label = await leaver.generate("a blue stork", steps=10, user="zoe")
        other = await eve.generate("a blue heron", steps=10, user="quitter")
        for one in (*mine, label, other):
            await guarded.house.settled(one)
        assert (await erase(user="quitter/ann"))["jobs"] == 2
        assert (await leaver.get_job(label.job.id)).job.id == label.job.id
        assert (await erase(user="quitter"))["jobs"] == 1
        assert await erase(user="quitter") == {}  # a second call finds nothing
        assert not (await leaver.list_jobs())[0]
        assert (await eve.get_picture(other.job.id)).png == other.png


async def test_a_tenant_goes_whole(guarded: Guarded) -> None:
    await guarded.issue("tenant1", "leaving", [Role.USER])
    await guarded.issue("tenant2", "leaving", [Role.USER])
    for subject in ("tenant1", "tenant2"):
        async with guarded.client(subject) as client:
            await guarded.house.settled(await client.generate("a narwhal for sale", steps=10, scope="private"))
    async with eraser(guarded, "ops") as erase:
        assert (await erase(whole_tenant=True, tenant="leaving"))["jobs"] == 2
    folder = guarded.house.process.context.settings.data_dir
    assert not rows_with("narwhal", folder)


@pytest.mark.parametrize(
    ("subject", "what"),
    [
        ("bob", {"user": "alice"}),
        ("bob", {"user": "bob"}),  # an admin's decision
        ("bob", {"whole_tenant": True}),
        ("chief", {"user": "eve", "tenant": "rival"}),
        ("chief", {"whole_tenant": True, "tenant": "rival"}),
    ],
)
async def test_nobody_erases_beyond_its_role(guarded: Guarded, subject: str, what: dict[str, Any]) -> None:
    async with eraser(guarded, subject) as erase:
        before = len(_audit(guarded, REFUSALS))
        guarded.house.process.context.door._audited.clear()  # type: ignore[union-attr]
        with pytest.raises(PermissionDeniedError, match="role"):
            await erase(**what)
        with pytest.raises(InvalidRequestError):
            await erase()
    (line,) = _audit(guarded, REFUSALS)[before:].splitlines()
    (named, value), *_ = what.items()
    target = "everything" if named == "whole_tenant" else f"{named} {value}"
    assert f'"action": "refused Erase", "target": "{target}' in line


async def test_nobody_erases_a_colleagues_job_and_no_wrong_id_erases_all(guarded: Guarded) -> None:
    async with guarded.client("alice") as alice, eraser(guarded, "bob") as erase, eraser(guarded, "ops") as operate:
        kept = await alice.generate("a job that stays", steps=10)
        guarded.house.process.context.door._audited.clear()  # type: ignore[union-attr]
        with pytest.raises(NotFoundError):
            await erase(job_id=kept.job.id)
        refused = f'"action": "refused Erase", "target": "job {kept.job.id}", "outcome": "NOT_FOUND"'
        assert refused in _audit(guarded, REFUSALS)
        for wrong in ("", "../..", kept.job.id[:5], kept.job.id + "-1"):
            with pytest.raises(InvalidRequestError):
                await operate(job_id=wrong)
        for nothing in ({}, {"user": ""}, {"whole_tenant": False}):
            with pytest.raises(InvalidRequestError):
                await operate(**nothing)
        assert (await alice.get_picture(kept.job.id)).png == kept.png
        assert (await operate(job_id=kept.job.id))["jobs"] == 1


async def test_a_waiting_job_is_cancelled_and_its_caller_told(guarded: Guarded) -> None:
    backends = guarded.house.backends
    async with guarded.client("alice") as alice, eraser(guarded, "alice") as erase:
        stream = alice.generate_stream("an eternal okapi", steps=1000, cache="off")
        accepted = await anext(stream)
        assert isinstance(accepted, Accepted)
        assert (await erase(job_id=accepted.job_id))["jobs"] == 1
        with pytest.raises((CancelledError, NotFoundError)):
            async for _ in stream:
                pass

        async def idle() -> bool:
            return not any(one._tasks.attempts for one in guarded.house.process.services if one.name == "gpu_worker")  # type: ignore[attr-defined]

        await until(idle)
        assert not [blob async for blob in backends.blobs.list() if accepted.job_id in blob.key]


async def test_a_failing_store_is_reported_and_a_second_call_ends_it(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends = guarded.house.backends
    async with guarded.client("alice") as alice, eraser(guarded, "alice") as erase:
        made = await alice.generate("a brown tapir", steps=10)
        await guarded.house.settled(made)
        with monkeypatch.context() as patch:
            patch.setattr(type(backends.blobs), "delete", _refuse)
            with pytest.raises(AssertionError, match="blobs: "):
                await erase(job_id=made.job.id)
        with pytest.raises(NotFoundError):  # gone for every API all the same
            await alice.get_job(made.job.id)
        assert [blob async for blob in backends.blobs.list() if made.job.id in blob.key]
        async with eraser(guarded, "ops") as operate:
            assert set(await operate(job_id=made.job.id)) == {"pictures/", "states/"}
        assert not [blob async for blob in backends.blobs.list() if made.job.id in blob.key]


async def test_erasures_of_a_caller_have_a_rate(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each walks through the plans of all jobs, and nothing else of the cache goes on meanwhile."""
    monkeypatch.setattr(erasing, "ERASURES", Rate(0.1, 2))
    await new_caller(guarded, "eager")
    async with guarded.client("eager") as client, eraser(guarded, "eager") as erase, eraser(guarded, "ops") as operate:
        first, second, third = [(await client.generate("a tapir", steps=2, seed=seed)).job.id for seed in range(3)]
        for job_id in (first, second):
            assert (await erase(job_id=job_id))["jobs"] == 1
        with pytest.raises(OverloadedError, match="this caller sends more than its rate of 6/min, burst 2; retry in"):
            await erase(job_id=third)
        assert (await operate(job_id=third))["jobs"] == 1


async def test_anonymous_callers_have_that_rate_too(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have every role, and passed for operators."""
    monkeypatch.setattr(erasing, "ERASURES", Rate(0.001, 2))
    settings = without_keys(tmp_path, tiny)
    async with house(settings) as it:
        made = [(await it.client.generate("a tapir", steps=2, seed=seed)).job.id for seed in range(3)]
        for job_id in made[:2]:
            await it.client.erase(job_id)
        with pytest.raises(OverloadedError, match="more than its rate"):
            await it.client.erase(made[2])
        asked = list[str]()
        monkeypatch.setattr(it.backends.catalog.entries, "by_ids", asked.extend)
        with pytest.raises(NotFoundError):
            await it.client.erase("with a \0")
        assert not asked  # PostgreSQL refuses such a text


async def test_the_next_start_knows_nothing_of_it(tmp_path: Path, tiny: Path) -> None:
    settings = without_keys(tmp_path, tiny)
    async with house(settings) as it:
        gone, kept = [await it.client.generate(f"a {word} ibex", steps=10, seed=3) for word in ("gone", "kept")]
        for made in (gone, kept):
            await it.settled(made)
        await it.client.erase(gone.job.id)
    async with house(settings) as it:
        assert [view.job.id for view in (await it.client.list_jobs())[0]] == [kept.job.id]
        (planned,) = await it.client.plan("a gone ibex", steps=10, seed=3)
        assert planned.job.plan.source is not PlanSource.EXACT
        assert gone.job.id not in repr(planned)
        (planned,) = await it.client.plan("a kept ibex", steps=10, seed=3)
        assert planned.job.plan.source is PlanSource.EXACT


async def test_what_a_late_worker_stores_goes_without_quarantine(guarded: Guarded) -> None:
    backends = guarded.house.backends
    (maintainer,) = (one for one in guarded.house.process.services if one.name == "cache_maintainer")
    cache: Any = maintainer.cache  # type: ignore[attr-defined]
    async with guarded.client("alice") as alice, eraser(guarded, "alice") as erase:
        made = await alice.generate("a late capybara", steps=10)
        await guarded.house.settled(made)
        await erase(job_id=made.job.id)
    key = f"states/{made.job.id}/2/5.safetensors"
    await backends.blobs.put(key, b"late")
    cache._again = [replace(one, at=one.at - 60.0) for one in cache._again]  # a minute later
    await cache.erase_again()
    assert not [blob async for blob in backends.blobs.list() if made.job.id in blob.key]


async def test_the_audit_log_says_who_erased_what_without_the_prompt(guarded: Guarded) -> None:
    async with guarded.client("alice") as alice:
        made = await alice.generate("a silent pangolin", steps=10)
        await alice.erase(made.job.id)
    said = _audit(guarded)
    assert f'"actor": "acme/alice", "action": "erase", "target": "job {made.job.id}", "outcome": "jobs: 1"' in said
    assert "pangolin" not in said


async def test_the_command_asks_the_gateway_with_a_key(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded.client("alice") as alice:
        made = await alice.generate("a terse quoll", steps=10)
    there = ["--yes", "--target", guarded.address]

    async def run(subject: str, *what: str) -> Any:
        monkeypatch.setenv(API_KEY, guarded.keys[subject])
        return await asyncio.to_thread(CliRunner().invoke, app, ["erase", *what, *there])

    assert isinstance((await run("bob", "--job", made.job.id)).exception, NotFoundError)
    assert isinstance((await run("chief", "--tenant", "rival")).exception, PermissionDeniedError)
    assert "pictures/" in (await run("alice", "--job", made.job.id)).stdout


def _audit(guarded: Guarded, file: str = FILE) -> str:
    path = guarded.house.process.context.settings.data_dir / file
    return path.read_text() if path.exists() else ""


async def _refuse(*_given: Any) -> None:
    raise BlobUnavailableError("the store is away", retry_after_s=1.0)
