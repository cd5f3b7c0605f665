"""The index follows the catalog, whoever writes to both meanwhile, and hits go on being found."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from services.cache_maintainer.cache_writes import Cache
from services.cache_maintainer.eviction.scored import Lcbfu, StateStore
from shared.blobs import open_blobs
from shared.bus import open_bus
from shared.catalog import Catalog
from shared.domain.types import Hit, IndexFilter, IndexItem, Vector
from shared.index import Index
from shared.index.rebuild import Repaired, reconcile, repair_index
from shared.runtime.clock import SystemClock
from shared.service.backends import Backends
from tests.contracts.nouns import a_vector, an_entry
from tests.unit.cached import finished_job, request, unit

pytestmark = pytest.mark.parametrize(
    ("catalog_url", "index"), [("sqlite", "memory"), ("postgresql", "weaviate")], indirect=True
)
ALL = IndexFilter()
Hook = Callable[[str], Awaitable[None]]


class Watched:
    """An index that tells before and after every write, so that a test decides what happens there."""

    process_local = False

    def __init__(self, index: Index, hook: Hook) -> None:
        self._index, self._hook = index, hook

    async def search(self, name: str, vector: Vector, where: IndexFilter, limit: int) -> list[Hit]:
        return await self._index.search(name, vector, where, limit)

    async def add(self, items: Sequence[IndexItem]) -> None:
        await self._hook("before add")
        await self._index.add(items)
        await self._hook("after add")

    async def remove(self, entry_ids: Sequence[str]) -> None:
        await self._hook("before remove")
        await self._index.remove(entry_ids)
        await self._hook("after remove")

    async def count(self) -> int:
        return await self._index.count()

    async def ids(self) -> AsyncIterator[list[str]]:
        async for page in self._index.ids():
            yield page
            await self._hook("listed")

    async def missing(self, entry_ids: Sequence[str]) -> set[str]:
        return await self._index.missing(entry_ids)

    async def close(self) -> None:
        await self._index.close()


async def listed(index: Index) -> set[str]:
    return {entry_id async for page in index.ids() for entry_id in page}


async def live(catalog: Catalog) -> set[str]:
    return {item.entry_id for item in await catalog.entries.items("", 10_000)}


async def repaired(catalog: Catalog, index: Index) -> Repaired:
    return await repair_index(catalog, index, lambda _: None)


async def store(catalog: Catalog, number: int) -> str:
    entry = an_entry(steps=(5,))
    await catalog.entries.add(entry, {"whole": a_vector(number).tobytes()})
    return entry.id


async def test_what_is_missing_comes_and_what_is_gone_goes(catalog: Catalog, index: Index) -> None:
    ids = [await store(catalog, number) for number in range(12)]
    await reconcile(catalog, index, ids[:8])
    await index.add([IndexItem("stray", {"whole": a_vector(99)}, "c", "public", "h")])
    await catalog.entries.drop_states([(entry_id, 5) for entry_id in ids[:3]])
    await catalog.entries.drop_entries(ids[3:4])
    checked: list[int] = []
    found = await repair_index(catalog, index, checked.append)
    assert found == Repaired(kept=4, added=4, removed=5)
    assert await listed(index) == set(ids[4:]) == await live(catalog)
    assert sum(checked) == 9 + 8
    (hit,) = await index.search("whole", a_vector(11), ALL, 1)
    assert hit.entry_id == ids[11]
    assert hit.similarity == pytest.approx(1.0, abs=1e-6)
    assert await repaired(catalog, index) == Repaired(kept=8, added=0, removed=0)


async def test_an_entry_that_was_lost_is_found_by_each_of_its_vectors_again(catalog: Catalog, index: Index) -> None:
    """Whole prompt, object and background (FlexCache §5): one entry in three indexes."""
    entry, named = an_entry(steps=(5,)), {"whole": a_vector(1), "object": a_vector(2), "background": a_vector(3)}
    await catalog.entries.add(entry, {name: vector.tobytes() for name, vector in named.items()})
    await reconcile(catalog, index, [entry.id])
    for _ in range(2):
        for name, vector in named.items():
            (hit,) = await index.search(name, vector, ALL, 1)
            assert hit.entry_id == entry.id
            assert hit.similarity == pytest.approx(1.0, abs=1e-6)
        await index.remove([entry.id])
        assert await repaired(catalog, index) == Repaired(kept=0, added=1, removed=0)
    await catalog.entries.drop_states([(entry.id, 5)])
    await repaired(catalog, index)
    for name, vector in named.items():
        assert await index.search(name, vector, ALL, 1) == []


async def test_several_pages(catalog: Catalog, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.index.rebuild.PAGE", 5)
    monkeypatch.setattr("shared.index.weaviate.PAGE", 5)
    ids = [await store(catalog, number) for number in range(27)]
    assert await repaired(catalog, index) == Repaired(kept=0, added=len(ids), removed=0)
    assert await listed(index) == set(ids)
    await catalog.entries.drop_entries(ids[:20])
    assert await repaired(catalog, index) == Repaired(kept=7, added=0, removed=20)
    assert await listed(index) == set(ids[20:])


async def test_hits_never_vanish_while_the_index_is_rebuilt(catalog: Catalog, index: Index) -> None:
    ids = [await store(catalog, number) for number in range(60)]
    await reconcile(catalog, index, ids[:30])
    await index.add([IndexItem(f"stray{n}", {"whole": a_vector(900 + n)}, "c", "public", "h") for n in range(40)])
    found = 0

    async def look() -> None:
        nonlocal found
        while True:
            number = found % 30
            (hit,) = await index.search("whole", a_vector(number), ALL, 1)
            assert hit.entry_id == ids[number]
            found += 1
            await asyncio.sleep(0)

    async def slowly(_: str) -> None:
        await asyncio.sleep(0.05)

    looking = asyncio.create_task(look())
    await repaired(catalog, Watched(index, slowly))
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
    assert found >= 10
    assert await listed(index) == set(ids)


@pytest.fixture
async def ports(catalog: Catalog, index: Index, tmp_path: Path) -> AsyncIterator[Callable[[Hook], Backends]]:
    """The other two ports, around an index that is watched."""
    bus, blobs = await open_bus("inprocess:"), await open_blobs(f"file:{tmp_path / 'pictures'}")
    yield lambda hook: Backends(bus, Watched(index, hook), blobs, catalog)
    await blobs.close()
    await bus.close()


def a_cache(backends: Backends, max_bytes: int = 200) -> Cache:
    """The maintainer's; an entry of `finished_job` with two states fills it."""
    return Cache(backends, StateStore(Lcbfu(), []), SystemClock(), max_bytes=max_bytes, grace_s=60.0)


async def a_job_of(backends: Backends, number: int) -> str:
    return (await finished_job(backends, request(f"prompt {number}"), unit(number), steps=(5, 10))).id


@pytest.mark.parametrize("moment", ["before add", "after add"])
async def test_an_entry_evicted_while_it_is_added_stays_away(catalog: Catalog, index: Index, moment: str) -> None:
    victim, other = await store(catalog, 1), await store(catalog, 2)
    seen: list[str] = []

    async def evict_now(now: str) -> None:
        seen.append(now)
        if now == moment and seen.count(now) == 1:
            await index.remove([victim])
            await catalog.entries.drop_states([(victim, 5)])
            await reconcile(catalog, index, [victim])

    await repaired(catalog, Watched(index, evict_now))
    assert moment in seen
    assert await listed(index) == {other} == await live(catalog)


@pytest.mark.parametrize("how", ["evicted", "lost", "purged"])
async def test_an_entry_added_again_while_it_leaves_does_not_stay(
    catalog: Catalog, index: Index, ports: Callable[[Hook], Backends], how: str
) -> None:
    """A rebuild that runs between the first step of the maintainer's eviction (index) and the second (catalog)."""
    rebuilt: list[Repaired] = []

    async def rebuild_now(now: str) -> None:
        if now == "after remove" and not rebuilt and not await listed(index):
            rebuilt.append(await repaired(catalog, index))

    backends = ports(rebuild_now)
    cache = a_cache(backends)
    victim = await a_job_of(backends, 1)
    await cache.insert([victim])
    assert await listed(index) == {victim}
    if how == "evicted":
        await cache.insert([await a_job_of(backends, 2)])
    elif how == "lost":
        for state in (await catalog.entries.get(victim)).states:
            await cache.lose(victim, state.step, state.key)
    else:
        await cache.purge(lambda entry: entry.id == victim)
    assert rebuilt == [Repaired(kept=0, added=1, removed=0)]
    assert victim not in await listed(index)
    assert await listed(index) == await live(catalog)


async def test_an_entry_that_comes_back_while_its_removal_runs_stays(catalog: Catalog, index: Index) -> None:
    """A row that a crash of the database took back, and that the maintainer writes once more."""
    entry = an_entry(steps=(5,))
    await index.add([IndexItem(entry.id, {"whole": a_vector(1)}, "c", "public", "h")])
    again: list[str] = []

    async def write_again(now: str) -> None:
        if now == "before remove" and not again:
            again.append(now)
            await catalog.entries.add(entry, {"whole": a_vector(1).tobytes()})
            await reconcile(catalog, index, [entry.id])

    await repaired(catalog, Watched(index, write_again))
    assert again
    assert await listed(index) == {entry.id} == await live(catalog)


@pytest.mark.parametrize("seed", range(2))
async def test_insertions_evictions_and_rebuilds_at_once_end_in_agreement(
    catalog: Catalog, index: Index, ports: Callable[[Hook], Backends], seed: int
) -> None:
    """The maintainer's own cache, full and evicting with every insertion, a purge, and rebuilds in a loop; every write
    to the index takes a random while."""
    dice = random.Random(seed)

    async def sometime(_: str) -> None:
        await asyncio.sleep(dice.choice((0, 0, 0.001, 0.005, 0.02)))

    backends = ports(sometime)
    cache = a_cache(backends, max_bytes=1200)
    rebuilds = 0

    async def rebuild() -> None:
        nonlocal rebuilds
        while not inserting.done():
            await repaired(catalog, backends.index)
            rebuilds += 1

    async def insert() -> None:
        for number in range(16):
            await cache.insert([await a_job_of(backends, number)])
            if number == 11:
                await cache.purge(lambda entry: entry.prompt in ("prompt 10", "prompt 11"))

    inserting = asyncio.create_task(insert())
    await asyncio.gather(inserting, rebuild(), rebuild())
    assert cache.counts.evicted > 10
    assert rebuilds > 2
    assert await listed(index) == await live(catalog)
    assert len(await live(catalog)) >= 4
