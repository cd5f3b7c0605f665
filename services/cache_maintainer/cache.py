"""The cache's writes in the order that never leaves the index naming what is not there (design §8, Order of writes)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.cache_maintainer.admission import admit, fitting
from services.cache_maintainer.eviction import Shelf
from shared.backends import Backends
from shared.clock import Clock
from shared.errors import AfterimageError, NotFoundError
from shared.messages import EntriesCached, EntriesEvicted
from shared.telemetry import METRICS, log
from shared.types import Entry, IndexItem, Job, State, owner_key, vector_from


@dataclass
class Counts:
    """Since this process started."""

    inserted: int = 0
    evicted: int = 0
    holes: int = 0
    """States evicted from entries that kept others."""


@dataclass(frozen=True, slots=True)
class Removed:
    """What a purge took away."""

    entries: int
    states: int
    bytes: int


class Cache:
    """Inserts, evicts and purges, one at a time; blobs go a grace later."""

    def __init__(self, backends: Backends, shelf: Shelf, clock: Clock, *, max_bytes: int, grace_s: float) -> None:
        self.shelf = shelf
        self.counts = Counts()
        self._backends = backends
        self._clock = clock
        self._max_bytes = max_bytes
        self._grace_s = grace_s
        self._lock = asyncio.Lock()
        self._unindexed: list[IndexItem] = []
        self._doomed: list[tuple[float, list[str]]] = []

    async def insert(self, job_ids: Sequence[str]) -> None:
        """Turns succeeded jobs into entries: room first, then catalog, then index (their blobs exist already).

        Jobs that are entries already, are gone or may not be kept are fine; the latter's latents are dropped.
        """
        async with self._lock:
            jobs = await self._uncached(job_ids)
            admitted = [entry for job in jobs if (entry := admit(job)) is not None]
            await self._refuse([job.id for job in jobs if job.id not in {entry.id for entry in admitted}])
            kept = fitting(admitted, self._max_bytes)
            incoming = [state for entry in kept for state in entry.states]
            await self._evict(
                self.shelf.make_room(len(incoming), sum(state.bytes for state in incoming), self._max_bytes)
            )
            await self._add(kept, {job.id: job for job in jobs})
            self.doom(_left_out([job for job in jobs if job.id in {entry.id for entry in kept}], kept))

    async def _uncached(self, job_ids: Sequence[str]) -> list[Job]:
        known = await self._backends.catalog.entries.by_ids(job_ids)
        jobs = []
        for job_id in dict.fromkeys(job_ids):
            if job_id not in known:
                try:
                    jobs.append(await self._backends.catalog.jobs.get(job_id))
                except NotFoundError:
                    log("cache_maintainer").info("a finished job expired before it was cached", job=job_id)
        return jobs

    async def _refuse(self, job_ids: Sequence[str]) -> None:
        if job_ids:
            self.doom(await self._backends.catalog.jobs.drop_captured(job_ids))

    async def _add(self, entries: Sequence[Entry], jobs: dict[str, Job]) -> None:
        added = []
        for entry in entries:
            vector = jobs[entry.id].vector
            if await self._backends.catalog.entries.add(entry, {"whole": vector} if vector else {}):
                added.append(entry)
        live = await self._backends.catalog.entries.by_ids([entry.id for entry in added])
        for entry in live.values():
            for state in entry.states:
                self.shelf.insert(state)
                self.counts.inserted += 1
                METRICS.inserted.labels(_label(state.step)).inc()
        self._unindexed += [_item(entry, jobs[entry.id]) for entry in added if entry.states]
        await self.index_pending()
        if added:
            await self._backends.bus.publish(EntriesCached(tuple(entry.id for entry in added)))
        await self.measure()

    async def index_pending(self) -> None:
        """Adds to the index what could not be added before; an index that is away is tried again later."""
        if not self._unindexed:
            return
        items = [item for item in self._unindexed if self.shelf.alive(item.entry_id)]
        try:
            await self._backends.index.add(items)
        except AfterimageError as error:
            log("cache_maintainer").warning("index away, entries wait", entries=len(items), error=str(error))
            return
        self._unindexed = []

    async def _evict(self, victims: Sequence[State]) -> None:
        """Index (entries with no state left), catalog, and the blobs after the grace."""
        if not victims:
            return
        dirty = sorted({state.entry_id for state in victims if not self.shelf.alive(state.entry_id)})
        try:
            await self._backends.index.remove(dirty)
            await self._backends.catalog.entries.drop_states([(state.entry_id, state.step) for state in victims])
        except BaseException:
            for state in victims:  # still there: they are evicted with the next insertion
                self.shelf.insert(state)
            raise
        self.doom([state.key for state in victims])
        self.counts.evicted += len(victims)
        self.counts.holes += sum(state.entry_id not in dirty for state in victims)
        for state in victims:
            METRICS.evicted.labels(self.shelf.policy.name, _label(state.step)).inc()
        holes = sorted({state.entry_id for state in victims}.difference(dirty))
        await self._backends.bus.publish(EntriesEvicted(tuple(dirty), tuple(holes)))

    async def shrink(self) -> None:
        """Evicts until the budget holds, for a budget that was lowered since the last start."""
        async with self._lock:
            await self._evict(self.shelf.make_room(0, 0, self._max_bytes))

    async def purge(self, wanted: Callable[[Entry], bool]) -> Removed:
        """Removes whole entries at once; pictures that a job still has stay."""
        async with self._lock:
            doomed: list[Entry] = []
            after = ""
            while True:
                page, after = await self._backends.catalog.entries.page(1000, after)
                doomed += [entry for entry in page if wanted(entry)]
                if not after:
                    return await self._drop(doomed)

    async def _drop(self, entries: Sequence[Entry]) -> Removed:
        ids = tuple(entry.id for entry in entries)
        await self._backends.index.remove(ids)
        gone = await self._backends.catalog.entries.drop_entries(ids)
        states = [state for entry in gone for state in entry.states]
        for state in states:
            self.shelf.remove((state.entry_id, state.step))
        self.doom([state.key for state in states] + [entry.picture_key for entry in gone])
        if ids:
            await self._backends.bus.publish(EntriesEvicted(ids))
        await self.measure()
        return Removed(len(gone), len(states), sum(state.bytes for state in states))

    async def drop_spent(self) -> None:
        """Drops entries that only answered exact repeats and whose job expired."""
        async with self._lock:
            ids = await self._backends.catalog.entries.spent()
            if ids:
                await self._drop(list((await self._backends.catalog.entries.by_ids(ids)).values()))

    def doom(self, keys: Sequence[str]) -> None:
        """Blobs that go after the grace: a worker may be reading them."""
        if keys:
            self._doomed.append((self._clock.monotonic() + self._grace_s, list(keys)))

    async def delete_doomed(self) -> int:
        """Deletes the blobs whose grace is over and that nothing names any more; how many went.

        What this process forgets by ending, the orphan collector finds.
        """
        now = self._clock.monotonic()
        due = [key for at, keys in self._doomed if at <= now for key in keys]
        if not due:
            return 0
        named = await self._backends.catalog.entries.referenced(due)
        gone = [key for key in due if key not in named]
        await self._backends.blobs.delete(gone)
        self._doomed = [(at, keys) for at, keys in self._doomed if at > now]
        return len(gone)

    async def measure(self) -> None:
        """Sets the gauges."""
        totals = await self._backends.catalog.entries.totals()
        METRICS.cache_bytes.set(totals.bytes)
        METRICS.cache_entries.set(totals.entries)
        METRICS.cache_states.set(totals.states)


def _item(entry: Entry, job: Job) -> IndexItem:
    return IndexItem(
        entry_id=entry.id,
        vectors={"whole": vector_from(job.vector)},
        compat=str(entry.compat),
        owner=owner_key(entry.scope, entry.tenant, entry.user),
        encoder_hash=entry.encoder_hash,
    )


def _left_out(jobs: Sequence[Job], kept: Sequence[Entry]) -> list[str]:
    """Blobs of latents that became no state of their job's entry."""
    stay = {state.key for entry in kept for state in entry.states}
    captured = [latent.key for job in jobs if job.result is not None for latent in job.result.captured]
    return [key for key in captured if key not in stay]


def _label(step: int) -> str:
    """Metrics have few labels, whatever T is."""
    return str(step) if step <= 50 else "above 50"
