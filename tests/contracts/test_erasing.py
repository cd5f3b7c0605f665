"""Erasure in every pair of stores: the same jobs leave the index, the catalog and the blob store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import sqlalchemy as sa

from services.cache_maintainer.cache_writes import Cache
from services.cache_maintainer.eviction.scored import Lcbfu, StateStore
from shared.blobs import Blobs
from shared.bus import open_bus
from shared.catalog import Catalog, tables
from shared.domain.errors import NotFoundError, UnavailableError
from shared.domain.exact_repeats import repeat_result
from shared.domain.ids import new_id
from shared.domain.messages import DataErased, Message
from shared.domain.types import Candidate, IndexFilter, Job, JobState, Plan, PlanSource, Source, to_json
from shared.index import Index
from shared.runtime.clock import SystemClock
from shared.service.backends import Backends
from tests.conftest import ROOT
from tests.contracts.servers import REQUIRED
from tests.unit.cached import finished_job, request, unit

pytestmark = pytest.mark.parametrize(
    ("catalog_url", "index", "blobs_url"),
    [("sqlite", "memory", "filesystem"), ("postgresql", "weaviate", "seaweedfs")],
    indirect=True,
)
WORD = "axolotl"
GONE = request(f"a red {WORD}", tenant="acme", user="key:gone/ann")


@pytest.fixture
async def cache(catalog: Catalog, index: Index, blobs: Blobs) -> Cache:
    backends = Backends(bus=await open_bus("inprocess:"), index=index, blobs=blobs, catalog=catalog)
    return Cache(backends, StateStore(Lcbfu()), SystemClock(), max_bytes=10**6, grace_s=60.0)


async def cached(cache: Cache, asked: Any, plan: Plan | None = None, seed: int = 1) -> Job:
    job = await finished_job(cache._backends, asked, unit(seed), plan=plan)
    assert await cache.insert([job.id])
    return job


def grown(first: Job, source: PlanSource = PlanSource.LATENT) -> Plan:
    """A plan that starts from the first job's entry, with its prompt among the candidates."""
    assert first.result is not None
    state = first.result.captured[0]
    key, sha256 = (first.result.picture_key, first.result.picture_sha256) if source is PlanSource.EXACT else (
        state.key, state.sha256)  # fmt: skip
    return Plan(
        source, "noop", start_step=5, sources=(Source(first.id, key, sha256),), root=first.id,
        candidates=(Candidate(first.id, "latent", 0.9, 5, 5, first.request.prompt, chosen=True),),
        reason=f"near {first.id}",
    )  # fmt: skip


async def left(cache: Cache, word: str) -> str:
    """Return every row, blob key and found entry as text, where one has the word."""
    catalog = cache._backends.catalog
    rows = [*(await catalog.jobs.list(tenant="acme"))[0], *(await catalog.entries.page(100))[0]]
    found = [repr(row) for row in rows if word in repr(row)]
    found += [blob.key async for blob in cache._backends.blobs.list() if word in blob.key]
    hits = await cache._backends.index.search("whole", unit(1), IndexFilter(), 100)
    return " ".join(found + [hit.entry_id for hit in hits if word in hit.entry_id])


async def test_a_job_leaves_every_store_and_what_others_say_of_it(cache: Cache) -> None:
    catalog = cache._backends.catalog
    first = await cached(cache, GONE)
    second = await cached(cache, request("a fox", tenant="acme"), grown(first), seed=2)
    plan = grown(first, PlanSource.EXACT)
    repeat = replace(second, id=new_id(), plan=plan, result=repeat_result(plan, 9), state=JobState.SUCCEEDED)
    await catalog.jobs.accept(repeat)
    erased = await cache.erase([first.id])
    assert not erased.left
    assert {kind: count for kind, (count, _) in erased.removed.items() if count} == {
        "jobs": 1, "entries": 1, "states": 5, "vectors": 1, "states/": 5, "pictures/": 1, "links": 3, "repeats": 1,
    }  # fmt: skip
    assert erased.removed["states/"] == (5, 500)
    assert not await left(cache, first.id)
    assert not await left(cache, WORD)
    assert len(await left(cache, second.id)) > 0
    (entry,) = (await catalog.entries.page(100))[0]
    assert (entry.root, len(entry.states)) == ("", 5)
    assert len(cache.shelf) == 5
    again = (await catalog.jobs.get(repeat.id)).result
    assert again is not None
    assert (again.picture_key, again.picture_sha256) == ("", "")
    assert not {kind for kind, (count, _) in (await cache.erase([first.id])).removed.items() if count}


async def test_a_users_jobs_are_those_of_the_subject_and_its_labels(cache: Cache) -> None:
    erasing = cache._backends.catalog.erasing
    users = (
        "key:gone/ann",
        "key:gone/",
        "gone",
        "key:goner/",
        "key:other/gone",
        "",
        "key:gone/ann/late",
        "gone/ann/late",
    )
    made = {user: (await cached(cache, request("a fox", tenant="acme", user=user), seed=3)).id for user in users}
    await cached(cache, request("a fox", tenant="rival", user="gone"), seed=4)
    assert await erasing.owned("acme", "gone") == sorted(made[user] for user in (*users[:3], users[6]))
    assert await erasing.owned("acme", "gone/ann") == [made["key:gone/ann"]]
    assert await erasing.owned("acme", None) == sorted(made.values())
    assert await erasing.owned("acme", "gon%") == []
    torn = (await finished_job(cache._backends, GONE, unit(1))).id
    spoiled = sa.update(tables.jobs).where(tables.jobs.c.id == torn).values(request="{torn")
    await cache._backends.catalog._database.write(lambda connection: connection.execute(spoiled).rowcount)
    assert torn in await erasing.owned("acme", "gone")
    assert torn not in await erasing.owned("acme", "other")


async def test_many_jobs_go_in_one_pass_over_the_store(cache: Cache) -> None:
    jobs = [await cached(cache, replace(GONE, seed=seed), seed=seed) for seed in range(17)]
    other = await cached(cache, request("a fox", tenant="acme"), grown(jobs[3]), seed=30)
    erased = await cache.erase([job.id for job in jobs])
    assert erased.removed["jobs"][0] == erased.removed["pictures/"][0] == 17
    assert erased.removed["links"] == (2, 0)
    assert not await left(cache, WORD)
    assert await left(cache, other.id)


async def test_a_store_that_is_away_does_not_keep_the_others(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_given: Any) -> None:
        raise UnavailableError("away", retry_after_s=1.0)

    first, other = await cached(cache, GONE), await cached(cache, request("a fox", tenant="acme"), seed=2)
    index, blobs = cache._backends.index, cache._backends.blobs
    with monkeypatch.context() as patch:
        patch.setattr(index, "remove", refuse)
        patch.setattr(blobs, "delete", refuse)
        erased = await cache.erase([first.id], "acme")
        assert [said.partition(":")[0] for said in erased.left] == ["index", "blobs"]
        assert (await cache.erase([other.id], "acme")).left[-1] == "what an earlier erasure left is still there"
        assert not (await cache.erase([], "rival")).left
        assert not (await cache.erase([])).left
    with pytest.raises(NotFoundError):
        await cache._backends.catalog.jobs.get(first.id)
    again = await cache.erase([], "acme")  # as of a user whose rows are gone
    assert not again.left
    assert not again.removed
    await cache.index_pending()
    assert not await left(cache, first.id)
    assert not await left(cache, other.id)


async def later(cache: Cache, by_s: float = 600.0) -> None:
    """Let the upkeep repeat what is due when `by_s` seconds are over."""
    cache._again = [replace(one, at=one.at - by_s) for one in cache._again]
    await cache.erase_again()
    await cache.index_pending()


@pytest.mark.parametrize("error", [asyncio.CancelledError(), UnavailableError("away", retry_after_s=1.0)])
async def test_an_erasure_that_ends_before_the_rows_go_is_finished_later(
    cache: Cache, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, said = cache._backends.catalog, list[Message]()
    first = await cached(cache, GONE)
    other = await cached(cache, request("a fox", tenant="acme"), grown(first), seed=2)
    await cache._backends.bus.subscribe([DataErased], lambda fact: _append(said, fact))
    with monkeypatch.context() as patch:
        patch.setattr(catalog.erasing, "erase", _raising(error))
        with contextlib.suppress(asyncio.CancelledError):
            assert (await cache.erase([first.id])).left
    assert first.id not in repr((await catalog.jobs.get(other.id)).plan)
    assert await catalog.jobs.get(first.id)
    await later(cache)
    await asyncio.sleep(0)
    assert not await left(cache, WORD)
    assert not await left(cache, first.id)
    assert {fact.job_ids for fact in said if isinstance(fact, DataErased)} == {(first.id,)}


async def test_the_next_leader_repeats_what_was_erased_lately_and_no_purge(cache: Cache) -> None:
    backends = cache._backends
    first, purged = await cached(cache, GONE), await cached(cache, request("a fox", tenant="acme"), seed=2)
    await cache.erase([first.id])
    await cache.purge(lambda entry: entry.id == purged.id)
    leader = Cache(backends, StateStore(Lcbfu()), SystemClock(), max_bytes=10**6, grace_s=60.0)
    await leader.recall_erasures()
    late = await cached(leader, request("a hen", tenant="acme"), grown(first), seed=3)
    await backends.blobs.put(f"states/{first.id}/2/5.safetensors", b"late")
    await later(leader, 60.0)
    assert not await left(leader, first.id)
    assert await backends.catalog.jobs.get(purged.id)
    assert await backends.catalog.jobs.get(late.id)


async def test_a_plan_that_a_long_run_writes_is_blanked_when_the_run_has_ended(cache: Cache) -> None:
    jobs, first = cache._backends.catalog.jobs, await cached(cache, GONE)
    held = grown(first)
    runs = replace(first, id=new_id(), request=request("a fox", tenant="acme"), plan=held, state=JobState.QUEUED)
    await jobs.accept(replace(runs, result=None))
    assert await jobs.claim(runs.id, "worker", 60.0)
    await cache.erase([first.id])
    await later(cache)
    assert len(cache._again) == 1
    await jobs.cancel(runs.id)
    await _write_plan(cache, runs.id, held)
    assert WORD in await left(cache, WORD)
    await later(cache)
    assert not await left(cache, WORD)
    assert not cache._again


async def test_two_erasures_that_fail_at_once_are_both_finished(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    first, other = await cached(cache, GONE), await cached(cache, request("a fox", tenant="acme"), seed=2)
    with monkeypatch.context() as patch:
        patch.setattr(cache, "_end_checks", _raising(UnavailableError("away", retry_after_s=1.0)))
        patch.setattr(cache._backends.index, "remove", _raising(UnavailableError("away", retry_after_s=1.0)))
        patch.setattr(cache._backends.catalog.custody, "erase", _raising(UnavailableError("away", retry_after_s=1.0)))
        for erased in await asyncio.gather(cache.erase([first.id]), cache.erase([other.id])):
            assert {said.partition(":")[0] for said in erased.left} >= {"catalog", "index", "live checks"}
    assert cache._unerased.keys() == {first.id, other.id}
    await cache.erase_again()
    assert not cache._unerased
    assert not await left(cache, first.id)
    assert not await left(cache, other.id)


async def _append(said: list[Message], fact: Message) -> None:
    said.append(fact)


def _raising(error: BaseException) -> Any:
    async def refuse(*_given: Any) -> None:
        raise error

    return refuse


async def _write_plan(cache: Cache, job_id: str, plan: Plan) -> None:
    """Write the plan as a worker does at the end of its run."""
    query = sa.update(tables.jobs).where(tables.jobs.c.id == job_id).values(plan=to_json(plan).decode())
    await cache._backends.catalog._database.write(lambda connection: connection.execute(query).rowcount)


async def on_disk(catalog_url: str, *commands: str) -> Path:
    """Run commands on the catalog's database, and return the folder of its files."""
    url = sa.make_url(catalog_url)
    if url.get_backend_name() == "sqlite":
        with contextlib.closing(sqlite3.connect(str(url.database), timeout=20.0)) as file:
            for command in commands:
                file.execute(command)
        return Path(str(url.database)).parent
    connection = await asyncpg.connect(url.set(drivername="postgresql").render_as_string(False))
    try:
        data = await connection.fetchval("SELECT setting FROM pg_settings WHERE name = 'data_directory'")
        place = await connection.fetchval("SELECT oid FROM pg_database WHERE datname = current_database()")
        folder = Path(data or "/nowhere") / "base" / str(place)
        if not os.access(folder, os.X_OK):
            (pytest.fail if "postgresql" in REQUIRED else pytest.skip)("PostgreSQL's files are not readable from here")
        for command in commands:
            await connection.execute(command)
    finally:
        await connection.close()
    return folder


def having_the_word(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file() and WORD.encode() in path.read_bytes()]


async def test_after_the_stated_vacuum_no_file_of_the_catalog_has_the_word(cache: Cache, catalog_url: str) -> None:
    stated = (ROOT / "docs/how-to/erase.md").read_text()
    if catalog_url.startswith("sqlite"):
        (command,) = re.findall(r"`sqlite3 catalog.sqlite3 '(.+)'`", stated)
        vacuum, written = command.split("; "), ["PRAGMA wal_checkpoint"]
    else:
        vacuum, written = [*re.findall(r"`(VACUUM .+?)`", stated), "CHECKPOINT"], ["ANALYZE", "CHECKPOINT"]
        assert len(vacuum) == 3
    first = await cached(cache, GONE)
    await cached(cache, request("a fox", tenant="acme"), grown(first), seed=2)
    files = await on_disk(catalog_url, *written)
    assert having_the_word(files)
    await cache.erase([first.id])
    await on_disk(catalog_url, *vacuum)
    assert not having_the_word(files)
