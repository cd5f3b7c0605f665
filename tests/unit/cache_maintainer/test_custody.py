"""Blobs leave by way of a quarantine, and never in suspicious numbers."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any

import grpc
import pytest

from protos import cache_maintainer_pb2 as pb
from services.cache_maintainer.orphan_collector import Findings, judge_size
from shared.domain.errors import NotFoundError
from shared.domain.types import JobState
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS
from tests.unit.cache_maintainer.house import held, house, old_orphans, steal
from tests.unit.cached import MODEL, finished_job, request, unit

pytestmark = pytest.mark.usefixtures("passes_are_made_by_the_test")

DAYS_S = 3 * 86_400.0


async def test_what_nothing_names_waits_in_quarantine(brief: Settings) -> None:
    waits = brief.model_copy(update={"quarantine_s": 0.8})
    async with house(waits) as home:
        (orphan,) = await old_orphans(home, 1)
        await home.service.collect()
        assert await home.has(orphan)
        assert METRICS.quarantined._value.get() == 1
        await asyncio.sleep(0.4)
        await home.service.collect()  # seen again: the time counts from the first
        assert await home.has(orphan)
        await asyncio.sleep(0.5)
        await home.service.collect()
        assert not await home.has(orphan)
        assert METRICS.quarantined._value.get() == 0
        assert await home.backends.catalog.custody.counts(0.0) == (0, 0)


async def test_a_blob_that_is_named_again_loses_its_mark(brief: Settings) -> None:
    """And begins anew when nothing names it later."""
    async with house(brief) as home:
        job = await finished_job(home.backends, request(), unit(1))
        unnamed = replace(job, id="j" * 26, state=JobState.QUEUED, result=None)
        key = f"states/{unnamed.id}-1-5.safetensors"
        await home.backends.blobs.put(key, b"x")
        await asyncio.sleep(0.2)
        await home.service.collect()
        assert await home.backends.catalog.custody.counts(DAYS_S) == (1, 0)
        await home.backends.catalog.jobs.accept(unnamed, key_lifetime_s=60)
        await home.service.collect()
        assert await home.backends.catalog.custody.counts(0.0) == (0, 0)
        assert await home.has(key)


async def test_a_blob_that_is_named_between_the_look_and_the_deletion_stays(
    brief: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(brief.model_copy(update={"quarantine_s": 0.0})) as home:
        job = await finished_job(home.backends, request(), unit(1))
        unnamed = replace(job, id="j" * 26, state=JobState.QUEUED, result=None)
        key = f"states/{unnamed.id}-1-5.safetensors"
        await home.backends.blobs.put(key, b"x")
        await asyncio.sleep(0.2)
        custody = home.service._backends.catalog.custody
        due = custody.due

        async def then(*given: Any) -> list[str]:
            found = await due(*given)
            if found:
                await home.backends.catalog.jobs.accept(unnamed, key_lifetime_s=60)
            return found

        monkeypatch.setattr(custody, "due", then)
        await home.service.collect()
        assert await home.has(key)


async def test_what_is_erased_on_request_skips_the_quarantine(brief: Settings) -> None:
    """Also what a lost attempt had left, and when the maintainer dies before the grace is over."""
    async with house(brief) as home:
        purged, kept = await home.finish(request("a"), 1), await home.finish(request("b"), 2)
        left = [f"states/{job_id}-0-5.safetensors" for job_id in (purged, kept)]
        for key in left:
            await home.backends.blobs.put(key, b"x")
        await asyncio.sleep(0.2)
        await home.service.collect()
        assert [await home.has(key) for key in left] == [True, True]
        await home.stub.Purge(pb.PurgeRequest(entry_id=purged), timeout=5)
        home.service.cache.doomed._keys.clear()  # killed here
    async with house(brief) as home:
        await asyncio.sleep(0.2)
        await home.service.collect()
        assert not await home.has(f"states/{purged}/1/5.safetensors")
        assert [await home.has(key) for key in left] == [False, True]
        assert await home.has(f"pictures/{purged}/1.png")  # its job's
        assert await home.has(f"states/{kept}/1/5.safetensors")


async def test_what_is_erased_lives_for_the_grace_all_the_same(settings: Settings) -> None:
    """A worker may be reading it."""
    slow = settings.model_copy(update={"large": MODEL, "blob_grace_s": 0.6, "quarantine_s": 0.0})
    async with house(slow) as home:
        job_id = await home.finish(request(), steps=(5,))
        left = f"states/{job_id}-0-5.safetensors"
        await home.backends.blobs.put(left, b"x")
        await asyncio.sleep(0.8)  # both blobs are older than the grace
        home.service._collector._quarantine_s = DAYS_S
        await home.stub.Purge(pb.PurgeRequest(entry_id=job_id), timeout=5)
        await home.service.collect()
        assert await home.has(left)
        await asyncio.sleep(0.8)
        await home.service.collect()
        assert not await home.has(left)


async def test_what_eviction_and_expiry_decided_skips_the_quarantine(small: Settings) -> None:
    changes = {"blob_grace_s": 0.05, "results_keep_s": 0.05, "image_tier": "off", "eviction_policy": "fifo"}
    async with house(small.model_copy(update=changes)) as home:
        first = await home.finish(request("a"), 1)
        for number in (2, 3):  # the budget is two entries'
            await home.finish(request(str(number)), number)
        without = await home.finish(request("b"), 4, steps=())
        await asyncio.sleep(0.2)
        await home.service.collect()
        await asyncio.sleep(0.2)
        await home.service._tidy()
        assert not await home.has(f"states/{first}/1/5.safetensors")
        assert not await home.has(f"pictures/{without}/1.png")
        with pytest.raises(NotFoundError):
            await home.backends.catalog.jobs.get(without)


async def test_a_pass_that_would_delete_suspiciously_much_waits_for_an_operator(
    brief: Settings, logs: list[MutableMapping[str, Any]]
) -> None:
    async with house(brief.model_copy(update={"quarantine_s": 0.0})) as home:
        entry_id = await home.finish(request())
        orphans = await old_orphans(home, 101)
        await home.service.collect()
        assert all([await home.has(key) for key in orphans])
        assert held("large") == 1
        said = next(one["error"] for one in logs if one["event"] == "orphans stay")
        assert said.startswith("101 of 107 blobs")
        shown = await home.stub.Collect(pb.CollectRequest(), timeout=20)
        assert (shown.blobs, shown.unnamed, shown.due, shown.deleted, shown.held) == (107, 101, 101, 0, "large")
        assert "afterimage cache collect --yes" in shown.said
        assert all([await home.has(key) for key in orphans])
        done = await home.stub.Collect(pb.CollectRequest(confirmed=True), timeout=20)
        assert (done.deleted, done.unnamed, done.held) == (101, 0, "")
        assert not any([await home.has(key) for key in orphans])
        assert await home.has(f"states/{entry_id}/1/5.safetensors")
        assert held("large") == 0


async def test_confirming_lets_nothing_out_of_the_quarantine_early(brief: Settings) -> None:
    async with house(brief) as home:
        (orphan,) = await old_orphans(home, 1)
        done = await home.stub.Collect(pb.CollectRequest(confirmed=True), timeout=20)
        assert (done.deleted, done.unnamed, done.due, done.quarantine_s) == (0, 1, 0, DAYS_S)
        assert await home.has(orphan)
        await steal(home)
        assert (await home.stub.Collect(pb.CollectRequest(confirmed=True), timeout=20)).held == "mismatch"


@pytest.mark.parametrize(
    ("blobs", "due", "waits"),
    [(100, 100, False), (101, 101, True), (1_010, 101, False), (1_009, 101, True), (10**6, 10**5, False)],
)
def test_suspiciously_much_is_more_than_a_hundred_and_more_than_a_tenth(blobs: int, due: int, waits: bool) -> None:
    assert (judge_size(Findings(blobs=blobs, unnamed=due, due=due)).held == "large") is waits


async def test_a_standby_collects_nothing_on_request(brief: Settings) -> None:
    async with house(brief) as home:
        home.service._leads = False
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await home.stub.Collect(pb.CollectRequest(confirmed=True), timeout=5)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        home.service._leads = True


async def test_orphans_in_quarantine_cost_no_question_each(brief: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay for days, and every pass looks at each of them."""
    async with house(brief) as home:
        database, asked = home.backends.catalog._database, list[object]()
        read = database.read

        async def ask(operation: Any, *args: Any, row: bool = False) -> Any:
            asked.append(operation)
            return await read(operation, *args, row=row)

        monkeypatch.setattr(database, "read", ask)
        passes = []
        for count in (1, 200):
            await old_orphans(home, count)
            asked.clear()
            await home.service._collect_orphans()
            passes.append(len(asked))
        assert await home.backends.catalog.custody.counts(0.0) == (200, 200)
        assert passes[0] == passes[1] < 20
