"""What collecting repairs, and what of it goes on where a step of it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from shared.catalog.tables import entries, jobs
from shared.domain.ids import new_id
from shared.domain.types import JobState, to_json
from shared.runtime.settings import Settings
from tests.unit.cache_maintainer.house import failing, house
from tests.unit.cached import MODEL, finished_job, request, unit


async def test_an_index_on_a_server_is_repaired_while_collecting(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the catalog's write and before the index's, nobody else would ever index the entry."""
    async with house(small) as home:
        job_id = await home.finish(request())
        await home.backends.index.remove([job_id])
        await home.service.collect()
        assert await home.found(1) == []  # in memory it is filled at the start, and only this process writes to it
        monkeypatch.setattr(home.backends.index, "process_local", False)
        await home.service.collect()
        assert await home.found(1) == [job_id]


async def test_a_step_of_collecting_that_fails_keeps_none_of_the_others_from_their_work(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = small.model_copy(update={"blob_grace_s": 0.05, "quarantine_s": 0.0})
    async with house(brief) as home:
        job_id = await home.finish(request())
        await home.backends.index.remove([job_id])
        await home.backends.blobs.put("states/nobody/1/5.safetensors", b"x")
        await asyncio.sleep(0.2)
        monkeypatch.setattr(home.backends.index, "process_local", False)
        for port, name in ((home.backends.catalog.jobs, "expire"), (home.backends.catalog.entries, "spent")):
            monkeypatch.setattr(port, name, failing(getattr(port, name), ZeroDivisionError("a bug"), on=1))
        monkeypatch.setattr(home.service.cache, "insert", lambda _: 1 / 0)
        monkeypatch.setattr(home.backends.catalog.jobs, "to_cache", lambda *_: 1 / 0)
        await home.service.collect()
        assert await home.found(1) == [job_id]
        assert not await home.has("states/nobody/1/5.safetensors")


async def test_collecting_ends_while_jobs_go_on_finishing(small: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each insertion lasted longer than the pause between two jobs, so that nothing expired on a busy server."""
    async with house(small) as home:
        insert, prompts = home.service.cache.insert, iter(range(1000))

        async def busy(job_ids: Sequence[str]) -> Any:
            added = await insert(job_ids)
            await finished_job(home.backends, request(f"the next, {next(prompts)}"), unit(1))
            return added

        await finished_job(home.backends, request(), unit(1))
        monkeypatch.setattr(home.service.cache, "insert", busy)
        async with asyncio.timeout(5.0):
            await home.service.collect()
        assert next(prompts) == 1
        assert len(await home.backends.catalog.jobs.to_cache()) == 1


async def test_collecting_ends_while_more_jobs_wait_than_fit_a_page(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages stayed full under load, so one pass of collection lasted an hour."""
    async with house(small.model_copy(update={"cache_batch_max": 1})) as home:
        insert, inserted = home.service.cache.insert, list[str]()

        async def busy(job_ids: Sequence[str]) -> Any:
            inserted.extend(job_ids)
            for _ in range(2):
                await finished_job(home.backends, request(f"the next, {new_id()}"), unit(1))
            return await insert(job_ids)

        waiting = [(await finished_job(home.backends, request(f"a {name}"), unit(1))).id for name in ("fox", "cat")]
        monkeypatch.setattr(home.service.cache, "insert", busy)
        async with asyncio.timeout(5.0):
            await home.service.collect()
        assert inserted == waiting


async def test_all_spent_entries_go_in_one_pass(small: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand went in each pass, and a busy server made more."""
    monkeypatch.setattr("services.cache_maintainer.removals.SPENT_AT_ONCE", 2)
    async with house(small) as home:
        entries = home.backends.catalog.entries
        for number in range(5):
            entry_id = await home.finish(request(f"a fox, {number}"), number)
            await entries.drop_states([(entry_id, one.step) for one in (await entries.get(entry_id)).states])
        await home.backends.catalog.jobs.expire(-1.0)
        assert len(await entries.spent()) == 5
        await home.service.collect()
        assert (await entries.totals()).entries == 0


async def test_an_old_entry_starts_nothing_and_its_job_keeps_the_image(small: Settings) -> None:
    async with house(small.model_copy(update={"cache_max_age_s": 3600.0})) as home:
        catalog = home.backends.catalog
        old, young = [await home.finish(request(f"a fox, {number}"), number) for number in range(2)]
        aged = sa.update(entries).where(entries.c.id == old).values(created_at=entries.c.created_at - 3601.0)
        await catalog._database.write(lambda connection: connection.execute(aged).rowcount)
        await home.service.collect()
        assert [*await catalog.entries.by_ids([old, young])] == [young]
        assert (await home.found(0), await home.found(1)) == ([], [young])
        assert {state.entry_id for state in home.service.cache.shelf} == {young}
        result = (await catalog.jobs.get(old)).result
        assert result is not None
        assert await home.has(result.picture_key)


async def test_checkpoints_of_a_job_that_ended_are_collected_and_those_of_one_in_work_stay(settings: Settings) -> None:
    """Its worker was killed, and nobody took the job up again before it was cancelled."""
    brief = settings.model_copy(update={"large": MODEL, "blob_grace_s": 0.05, "quarantine_s": 0.0})
    async with house(brief) as home:
        ended = await finished_job(home.backends, request(), unit(1))
        queued = replace(ended, id="j" * 26, state=JobState.QUEUED, result=None)
        await home.backends.catalog.jobs.accept(queued, key_lifetime_s=60)
        for job_id in (ended.id, queued.id):
            await home.backends.blobs.put(f"checkpoints/{job_id}-1-5.safetensors", b"x")
        await asyncio.sleep(0.2)
        await home.service.collect()
        assert not await home.has(f"checkpoints/{ended.id}-1-5.safetensors")
        assert await home.has(f"checkpoints/{queued.id}-1-5.safetensors")


async def test_nothing_of_what_another_version_wrote_is_cached_evicted_or_collected(settings: Settings) -> None:
    settings = settings.model_copy(update={"large": MODEL, "cache_max_bytes": 500})
    async with house(settings) as home:
        cached = await home.finish(request(), 1)  # five states of 100 bytes: the cache is full
        waiting = await finished_job(home.backends, request("waits"), unit(2))
        unnamed = f"states/{waiting.id}-1-7.safetensors"
        await home.backends.blobs.put(unnamed, b"x")  # as a row may name it where only another version looks
        kept = [state.key for state in (await home.backends.catalog.entries.get(cached)).states]
        database = home.backends.catalog._database

        def newer(connection: sa.Connection) -> None:
            connection.execute(sa.update(entries).where(entries.c.id == cached).values(scope="friends"))
            connection.execute(sa.update(jobs).where(jobs.c.id == waiting.id).values(state="succeeded", result="[]"))

        await database.write(newer)
    settings = settings.model_copy(update={"blob_grace_s": 0.05})
    async with house(settings) as home:
        await asyncio.sleep(0.2)
        other = await home.finish(request("a new one"), 3)  # it evicts none of theirs to make room
        await home.service.collect()
        await home.service.collect()
        assert all([await home.has(key) for key in (*kept, unnamed)])
        assert len(await home.steps(other)) == 5
        assert await home.backends.catalog.jobs.to_cache() == [waiting.id]
        database = home.backends.catalog._database

        def mended(connection: sa.Connection) -> None:
            connection.execute(sa.update(entries).where(entries.c.id == cached).values(scope="tenant"))
            done = to_json(waiting.result).decode()
            connection.execute(sa.update(jobs).where(jobs.c.id == waiting.id).values(result=done))

        await database.write(mended)
    async with house(settings.model_copy(update={"cache_max_bytes": 5000})) as home:
        assert len(await home.steps(cached)) == 5
        assert len(await home.steps(waiting.id)) == 5
        assert await home.found(2) == [waiting.id]
