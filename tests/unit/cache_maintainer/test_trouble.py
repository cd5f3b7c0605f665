"""What the maintainer makes of ports that fail half-way and of jobs that cannot be cached."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from protos import cache_maintainer_pb2 as pb
from services.cache_maintainer.eviction.afterimage import ExpectedStateStore
from services.cache_maintainer.eviction.scored import Wished
from services.cache_maintainer.retry_schedule import FIRST_S
from shared.catalog import Entries, Jobs
from shared.domain.errors import UnavailableError
from shared.domain.messages import EntriesCached, JobSucceeded, StateUsed
from shared.domain.types import IndexFilter
from shared.runtime.clock import ManualClock
from shared.runtime.settings import Settings
from tests.unit.cache_maintainer.house import failing, house
from tests.unit.cached import ENCODER, MODEL, finished_job, near, request, unit
from tests.unit.facts import heard


async def test_an_index_that_is_away_gets_the_entry_later(small: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    async with house(small) as home:
        add = home.backends.index.add

        async def away(items: object) -> None:
            raise UnavailableError("the index is away")

        monkeypatch.setattr(home.backends.index, "add", away)
        job_id = await home.finish(request())
        assert await home.found(1) == []
        monkeypatch.setattr(home.backends.index, "add", add)
        await home.service.cache.index_pending()
        assert await home.found(1) == [job_id]
        hits = await home.backends.index.search(
            "whole", near(unit(1), 0.9), IndexFilter(owners=("tenant:default",), encoder_hash=ENCODER), 1
        )
        assert hits[0].entry_id == job_id


async def test_what_a_new_leader_cannot_do_at_first_it_does_later(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill of catalog, index and leader at once, entries stayed hidden until the next repair of the index."""
    with monkeypatch.context() as patched:
        patched.setattr(Entries, "page", failing(Entries.page, UnavailableError("does not answer"), on=1))
        async with house(small) as home:
            doubted = list[Sequence[str]]()
            patched.setattr(home.service.cache, "note_fresh", lambda ids: doubted.append([*ids]))
            job = await finished_job(home.backends, request(), unit(1))
            await home.service.cache.insert([job.id])
            doubted.clear()
            await home.service._tidy()
            await home.service._tidy()
            assert [ids for ids in doubted if ids] == [[job.id]]


async def test_a_batch_that_fails_half_way_leaves_nothing_half_cached(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(small) as home:
        jobs = [await finished_job(home.backends, request(name), unit(i)) for i, name in enumerate("ab", 1)]
        entries = home.backends.catalog.entries
        with monkeypatch.context() as patched:
            patched.setattr(entries, "add", failing(entries.add, UnavailableError("locked"), on=2))
            for job in jobs:
                await home.service.handle(JobSucceeded(job.id, 1))
            with pytest.raises(UnavailableError):
                await home.service.flush()
        first, second = (job.id for job in jobs)
        assert await home.found(1) == [first]
        assert home.service.cache.shelf.bytes == (await entries.totals()).bytes == 500
        await heard(home.backends.bus)
        assert EntriesCached((first,)) in home.facts
        await home.service._tidy()  # the next round remembers what failed
        assert await home.found(2) == [second]
        assert home.service.cache.shelf.bytes == (await entries.totals()).bytes == 1000


async def test_an_eviction_that_the_catalog_refuses_leaves_the_index_whole(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(small.model_copy(update={"cache_max_bytes": 500})) as home:
        first = await home.finish(request("a"), 1)
        second = await finished_job(home.backends, request("b"), unit(2))
        entries = home.backends.catalog.entries
        with monkeypatch.context() as patched:
            patched.setattr(entries, "drop_states", failing(entries.drop_states, UnavailableError("locked"), on=1))
            with pytest.raises(UnavailableError):
                await home.service.cache.insert([second.id])
        await home.service.cache.index_pending()
        assert await home.found(1) == [first]
        await home.service.catch_up()
        assert await home.found(2) == [second.id]
        assert await home.found(1) == []
        assert home.service.cache.shelf.bytes == (await entries.totals()).bytes == 500


async def test_an_eviction_that_the_index_refuses_leaves_the_catalog_whole(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index never names what is not there: it forgets first."""
    async with house(small.model_copy(update={"cache_max_bytes": 500})) as home:
        first = await home.finish(request("a"), 1)
        second = await finished_job(home.backends, request("b"), unit(2))
        index, entries = home.backends.index, home.backends.catalog.entries
        with monkeypatch.context() as patched:
            patched.setattr(index, "remove", failing(index.remove, UnavailableError("the index is away"), on=1))
            with pytest.raises(UnavailableError):
                await home.service.cache.insert([second.id])
        assert await home.steps(first) == [5, 10, 15, 20, 25]
        assert await home.found(1) == [first]
        assert home.service.cache.shelf.bytes == (await entries.totals()).bytes == 500
        await home.service.catch_up()
        assert (await home.found(1), await home.found(2)) == ([], [second.id])
        assert home.service.cache.shelf.bytes == (await entries.totals()).bytes == 500


async def test_what_a_job_looked_up_counts_once_however_often_its_insertion_is_tried(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(small.model_copy(update={"cache_max_bytes": 500, "eviction_policy": "afterimage"})) as home:
        first = await home.finish(request("a"), 1)
        second = await finished_job(home.backends, request("b"), unit(2))
        index, shelf, held = home.backends.index, home.service.cache.shelf, home.service.cache.held
        heard_of, looked_up = list[float](), shelf.looked_up

        def counted(wishes: Sequence[Wished], at: float, total: int, pair: Sequence[Wished]) -> None:
            heard_of.append(at)
            looked_up(wishes, at, total, pair)

        monkeypatch.setattr(shelf, "looked_up", counted)
        with monkeypatch.context() as patched:

            async def away(_: object) -> None:
                raise UnavailableError("the index is away")

            patched.setattr(index, "remove", away)
            for _ in range(5):
                with pytest.raises(UnavailableError):
                    await home.service.cache.insert([second.id])
        await home.service.catch_up()
        assert (await home.found(1), await home.found(2)) == ([], [second.id])
        assert len(heard_of) == 1
        assert not held._weighed
        assert await home.steps(first) == []


async def test_what_was_weighed_of_a_job_that_expires_is_forgotten(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(small.model_copy(update={"eviction_policy": "afterimage"})) as home:
        job = await finished_job(home.backends, request("a"), unit(1))
        entries, held, shelf = home.backends.catalog.entries, home.service.cache.held, home.service.cache.shelf
        assert isinstance(shelf, ExpectedStateStore)
        with monkeypatch.context() as patched:
            patched.setattr(entries, "add", failing(entries.add, UnavailableError("locked"), on=1))
            with pytest.raises(UnavailableError):
                await home.service.cache.insert([job.id])
        assert set(held._weighed) == set(shelf._slot) == {job.id}
        monkeypatch.setattr(home.backends.catalog.jobs, "to_cache", lambda *_: asyncio.sleep(0, []))
        await home.service.catch_up()
        assert not held._weighed
        assert not shelf._slot  # no time is counted as that of an entry that is not there


async def test_jobs_without_latents_become_exact_repeats_even_when_nobody_heard_of_them(small: Settings) -> None:
    async with house(small) as home:
        await home.service.drain()
        missed = await finished_job(home.backends, request("a"), unit(1), steps=())
    async with house(small) as home:
        entry = await home.backends.catalog.entries.exact(missed.exact_key, "default", ["tenant:default"])
        assert entry is not None
        assert await home.backends.catalog.jobs.to_cache() == []
        await home.stub.Purge(pb.PurgeRequest(everything=True), timeout=5)
        await home.service.catch_up()  # what was thrown away stays away
        assert (await home.backends.catalog.entries.totals()).entries == 0


async def test_blobs_of_a_job_that_finishes_while_orphans_are_looked_for_stay(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = settings.model_copy(update={"large": MODEL, "blob_grace_s": 0.05, "quarantine_s": 0.0})
    async with house(brief) as home:
        await home.service.drain()
        jobs, finish = home.backends.catalog.jobs, home.backends.catalog.jobs.finish
        waiting: list[tuple[Any, ...]] = []

        async def later(*args: Any) -> bool:
            waiting.append(args)
            return True

        with monkeypatch.context() as patched:
            patched.setattr(jobs, "finish", later)
            job = await finished_job(home.backends, request(), unit(1))
        custody, in_work = home.backends.catalog.custody, home.backends.catalog.custody.in_work

        async def finishing(job_ids: Sequence[str]) -> set[str]:
            if waiting:
                await finish(*waiting.pop())
            return await in_work(job_ids)

        monkeypatch.setattr(custody, "in_work", finishing)  # between what is named and what is in work
        await asyncio.sleep(0.2)
        await home.service.collect()
        assert not waiting
        assert await home.has(f"states/{job.id}/1/5.safetensors")
        assert await home.has(f"pictures/{job.id}/1.png")


async def test_an_insert_whose_answer_was_lost_counts(small: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    async with house(small) as home:
        entries = home.backends.catalog.entries
        job = await finished_job(home.backends, request("a"), unit(1))

        async def answer_is_lost(*given: Any) -> bool:
            await Entries.add(entries, *given)
            raise UnavailableError("connection lost")

        with monkeypatch.context() as patched:
            patched.setattr(entries, "add", answer_is_lost)
            with pytest.raises(UnavailableError):
                await home.service.cache.insert([job.id])
        assert home.service.cache.shelf.bytes == 0
        await home.service._tidy()
        assert home.service.cache.shelf.bytes == (await entries.totals()).bytes == 500
        assert await home.found(1) == [job.id]
        await home.settle()
        assert home.facts == [EntriesCached((job.id,))]


async def test_one_job_that_cannot_be_cached_holds_up_nothing_and_is_tried_less_and_less(
    small: Settings, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(small.model_copy(update={"cache_batch_max": 1}), clock) as home:
        await home.service.drain()
        bad, good = [await finished_job(home.backends, request(name), unit(i)) for i, name in enumerate("ab", 1)]
        assert bad.id < good.id
        tried: list[str] = []

        async def reads(job_id: str) -> Any:
            if job_id == bad.id:
                tried.append(job_id)
                raise ValueError("a row that this version cannot read")
            return await Jobs.get(jobs, job_id)

        jobs = home.backends.catalog.jobs
        monkeypatch.setattr(jobs, "get", reads)
        await home.service.catch_up()
        assert await home.found(2) == [good.id]
        for _ in range(3):
            await home.service.catch_up()
        assert len(tried) == 1
        clock.advance(FIRST_S + 1)
        await home.service.catch_up()
        clock.advance(FIRST_S + 1)
        await home.service.catch_up()
        assert len(tried) == 2  # the second wait is longer
        clock.advance(FIRST_S + 1)
        monkeypatch.setattr(jobs, "get", lambda job_id: Jobs.get(jobs, job_id))
        await home.service.catch_up()
        assert await home.found(1) == [bad.id]


async def test_uses_that_the_catalog_refuses_keep_no_job_from_being_cached(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(small) as home:
        entries = home.backends.catalog.entries
        first = await home.finish(request("a"), 1)
        second = await finished_job(home.backends, request("b"), unit(2))
        with monkeypatch.context() as patched:
            patched.setattr(entries, "used", failing(entries.used, UnavailableError("locked"), on=1))
            await home.service.handle(StateUsed(first, 5))
            await home.service.handle(JobSucceeded(second.id, 1))
            with pytest.raises(UnavailableError):
                await home.service.flush()
        assert await home.found(2) == [second.id]
        await home.service.flush()
        assert [state.uses for state in (await entries.get(first)).states if state.step == 5] == [1]
