"""The cache's writes, ordered so that the index never names a missing blob (docs/architecture.md, Write order).

This module exceeds 300 lines on purpose: insertion, eviction and purge share one lock and one write order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from services.cache_maintainer.admission import admit, keeping, left_out, offer_of
from services.cache_maintainer.contents import CacheContents
from services.cache_maintainer.deferred_deletes import DeferredDeletes
from services.cache_maintainer.eviction.scored import StateStore
from services.cache_maintainer.eviction.window import Window
from services.cache_maintainer.recent_entries import Fresh
from services.cache_maintainer.retry_schedule import RetrySchedule
from shared.domain.errors import AfterimageError, NotFoundError, StorageFullError, UnreadableRowError, passes
from shared.domain.messages import EntriesCached, EntriesEvicted
from shared.domain.types import PICTURE_STEP, Entry, Job, Modality, State
from shared.index.rebuild import reconcile, refind
from shared.runtime.clock import Clock
from shared.runtime.telemetry import METRICS, log
from shared.service.backends import Backends

IDS_IN_A_FACT = 1000
"""Entry ids per event: keeps each message well below the bus's size limit."""


@dataclass
class Counts:
    """Counts since this process started."""

    inserted: int = 0
    evicted: int = 0
    holes: int = 0
    """States evicted from entries that kept other states."""


@dataclass(frozen=True, slots=True)
class Removed:
    """Counts of what a purge removed; `states` and `bytes` count latents only."""

    entries: int
    states: int
    bytes: int


class Cache:
    """Inserts, evicts and purges entries, one operation at a time; deletes blobs after the grace."""

    def __init__(
        self,
        backends: Backends,
        shelf: StateStore,
        clock: Clock,
        *,
        max_bytes: int,
        grace_s: float,
        check: Callable[[], None] = lambda: None,
        pictures: Window | None = None,
        pictures_of: Callable[[str], bool] = lambda model: True,
    ) -> None:
        """Share the state store `shelf` and the backends with the service.

        `check` raises when this process may not write any more. It is called before writes that the catalog cannot
        fence. `max_bytes` is the latents' budget. `pictures` is the window of images that other models may start from,
        if any. `pictures_of(model)` returns whether this model's images belong in that window.
        """
        self.held = CacheContents(shelf, pictures, max_bytes)
        self.shelf, self.pictures = shelf, pictures
        self._pictures_of = pictures_of
        self.counts = Counts()
        self._backends = backends
        self._clock = clock
        self._check = check
        self._lock = asyncio.Lock()
        self.setbacks = RetrySchedule()
        self._doubtful: set[str] = set()
        """Entries whose insertion failed, or succeeded without a reply."""
        self._unindexed: set[str] = set()
        """Entries whose row changed and whose index object may be stale."""
        self._fresh = Fresh()
        self.doomed = DeferredDeletes(backends, clock, grace_s, check)

    async def insert(self, job_ids: Sequence[str]) -> list[Entry]:
        """Turn succeeded jobs into entries and return the new ones.

        The order is: make room, write the catalog, write the index; the blobs exist already. Jobs that are entries
        already, that are gone or that must not be kept are skipped. For the last, the captured latents are deleted. If
        jobs fail, the first error is raised after all other jobs are cached; the catalog still lists the failed jobs as
        uncached. A job that is itself at fault raises nothing: its retry is postponed, for longer each time.
        """
        async with self._lock:
            await self._look_again()
            jobs = await self._uncached(job_ids)
            admitted = self._admitted(jobs)
            await self._refuse([job_id for job_id, entry in admitted.items() if entry is None])
            by_id, now = {job.id: job for job in jobs}, self._clock.now()
            entries = [entry for entry in admitted.values() if entry is not None]
            taken = self.held.take_in([offer_of(entry, by_id[entry.id], now) for entry in entries], now)
            await self._evict(taken.victims)
            return await self._add([keeping(*one) for one in zip(entries, taken.kept, strict=True)], by_id)

    async def only_waiting(self, job_ids: Collection[str]) -> None:
        """Drop the bookkeeping of all jobs but these: the others were cached, or expired."""
        self.setbacks.keep(job_ids)
        async with self._lock:  # wait for insertions in progress: their jobs are neither cached nor expired
            self.held.only_waiting(job_ids)

    def holds_picture(self, entry_id: str) -> bool:
        """Return whether the window holds the entry's image; jobs can start from the image once it is embedded."""
        return self.pictures is not None and self.pictures.shelf.get((entry_id, PICTURE_STEP)) is not None

    async def drop_picture(self, entry_id: str) -> None:
        """Remove the image from the window, so that no job starts from it.

        The blob stays for its job and for exact repeats.
        """
        async with self._lock:
            state = self.held.of(PICTURE_STEP).get((entry_id, PICTURE_STEP))
            if state is not None:
                self.held.take(state)
                await self._take_away([state])

    async def place_pictures(self, vectors: Mapping[str, bytes], encoder_hash: str) -> None:
        """Index images by their embeddings (entry id → float32, little endian).

        An image whose prompt was embedded by another encoder cannot share the index object. Such images are removed
        from the window.
        """
        async with self._lock:
            kept = await self._backends.catalog.entries.embedded(vectors, encoder_hash)
            self._unindexed.update(entry_id for entry_id, is_kept in kept.items() if is_kept)
            await self._index_pending()
        for entry_id in (entry_id for entry_id, is_kept in kept.items() if not is_kept):
            await self.drop_picture(entry_id)

    async def _look_again(self) -> None:
        """Add entries of unknown outcome to the store: an insertion without a reply may have reached the catalog."""
        if not self._doubtful:
            return
        found = await self._backends.catalog.entries.by_ids(sorted(self._doubtful))
        self._doubtful.clear()
        for entry in found.values():
            self._shelve(entry)
        if found:
            await self._index_pending()
            await self._tell(EntriesCached(tuple(found)))
            self._show_sizes(more=len(found))

    async def _uncached(self, job_ids: Sequence[str]) -> list[Job]:
        now = self._clock.monotonic()
        due = [job_id for job_id in dict.fromkeys(job_ids) if self.setbacks.due(job_id, now)]
        known = await self._backends.catalog.entries.by_ids(due)
        jobs = []
        for job_id in due:
            if job_id in known:
                continue
            try:
                jobs.append(await self._backends.catalog.jobs.get(job_id))
            except NotFoundError:
                log("cache_maintainer").info("a finished job expired before it was cached", job=job_id)
            except Exception as error:
                self._set_back(job_id, error)
        return jobs

    def _admitted(self, jobs: Sequence[Job]) -> dict[str, Entry | None]:
        """Return the entry of each job id; None for jobs that must not be kept."""
        admitted: dict[str, Entry | None] = {}
        for job in jobs:
            try:
                admitted[job.id] = admit(job, picture=self._keeps_picture(job))
            except Exception as error:
                self._set_back(job.id, error)
        return admitted

    def _keeps_picture(self, job: Job) -> bool:
        """Return whether the cache may offer the job's image as a start; no search finds clips by their frames."""
        if job.request.modality is Modality.VIDEO:
            return False
        return self.pictures is not None and job.result is not None and self._pictures_of(job.result.model)

    def _set_back(self, job_id: str, error: Exception) -> None:
        """Postpone the retry of a job that is at fault; raise the error if a backend is at fault."""
        if passes(error):
            raise error
        again_in_s = self.setbacks.failed(job_id, self._clock.monotonic())
        if isinstance(error, UnreadableRowError):  # the job is not at fault, and the catalog has logged the error
            return
        log("cache_maintainer").error("job not cached", job=job_id, error=repr(error), again_in_s=again_in_s)

    async def _refuse(self, job_ids: Sequence[str]) -> None:
        if job_ids:
            self.doomed.add(await self._backends.catalog.jobs.drop_captured(job_ids))

    async def _add(self, entries: Sequence[Entry], jobs: dict[str, Job]) -> list[Entry]:
        """Add the entries one by one; each added entry is stored, indexed and announced, even if a later one fails."""
        added: list[Entry] = []
        failed: list[Exception] = []
        for entry in entries:
            vector = jobs[entry.id].vector
            try:
                if await self._backends.catalog.entries.add(entry, {"whole": vector} if vector else {}):
                    added.append(entry)
                    self._shelve(entry)
                self.held.settled(entry.id)
            except Exception as error:
                self._doubtful.add(entry.id)
                if passes(error):
                    failed.append(error)
                else:
                    self._set_back(entry.id, error)
        self.doomed.add(left_out([jobs[entry.id] for entry in added], added))
        await self._index_pending()
        if added:
            await self._tell(EntriesCached(tuple(entry.id for entry in added)))
            self._show_sizes(more=len(added))
        if failed:
            raise failed[0]
        return added

    def _shelve(self, entry: Entry) -> None:
        now = self._clock.now()
        for state in entry.states:
            at = replace(state, created_at=state.created_at or now, used_at=state.used_at or now)
            self.held.put(at.bare())
            self.counts.inserted += not state.is_picture
            METRICS.inserted.labels(_label(state.step)).inc()
        if entry.states:
            self._unindexed.add(entry.id)

    async def _tell_evicted(self, entry_ids: Sequence[str], holes: Sequence[str] = ()) -> None:
        """Publish evictions, split into events that fit the broker's size limit."""
        for start in range(0, max(len(entry_ids), len(holes)), IDS_IN_A_FACT):
            part = slice(start, start + IDS_IN_A_FACT)
            await self._tell(EntriesEvicted(tuple(entry_ids[part]), tuple(holes[part])))

    async def _tell(self, fact: EntriesCached | EntriesEvicted) -> None:
        """Publish an event; only log a failure, because consumers that miss the event reread the catalog."""
        try:
            await self._backends.bus.publish(fact)
        except AfterimageError as error:
            log("cache_maintainer").warning("bus unreachable, event lost", fact=type(fact).__name__, error=str(error))

    async def index_pending(self) -> None:
        """Index the entries whose earlier index writes failed."""
        async with self._lock:  # without the lock, an entry that is being evicted would return to the index
            await self._look_again()
            await self._index_pending()

    async def _index_pending(self) -> None:
        """Write pending entries to the index from their catalog rows; on failure, keep them pending."""
        try:
            self._check()
            await reconcile(self._backends.catalog, self._backends.index, self._unindexed)
            self.note_fresh(self._unindexed)
        except Exception as error:
            log("cache_maintainer").warning(
                "index unreachable, entries wait", entries=len(self._unindexed), error=str(error)
            )
            return
        self._unindexed.clear()

    def note_fresh(self, entry_ids: Iterable[str]) -> None:
        if not self._backends.index.process_local:
            self._fresh.added(entry_ids, self._clock.monotonic())

    async def find_fresh(self) -> int:
        """Search for recently indexed entries and index those again that no search finds. Return how many."""
        catalog, index, now = self._backends.catalog, self._backends.index, self._clock.monotonic()
        due = self._fresh.due(now)
        live = sorted(await catalog.entries.live(due)) if due else []
        missing: set[str] = set()
        if live:
            self._check()
            missing = await refind(catalog, index, live)
        self._fresh.found(due)
        self._fresh.added(missing, now)
        return len(missing)

    async def _evict(self, victims: Sequence[State]) -> None:
        """Remove states that the store evicted from the index, the catalog and the blobs, and count them."""
        if not victims:
            return
        latents = [state for state in victims if not state.is_picture]
        holes = sum(self.shelf.alive(state.entry_id) for state in latents)
        await self._take_away(victims)
        self.counts.evicted += len(latents)
        self.counts.holes += holes
        for state in victims:
            METRICS.evicted.labels(self.held.of(state.step).policy.name, _label(state.step)).inc()

    async def _take_away(self, victims: Sequence[State]) -> None:
        """Remove states from the index, then from the catalog, then their blobs after the grace.

        An index object is removed when its entry has no state left. An image's blob stays as long as its job or its
        entry names it.
        """
        entries = {state.entry_id for state in victims}
        dead = {entry_id for entry_id in entries if not self.held.alive(entry_id)}
        try:
            self._check()
            await self._backends.index.remove(sorted(dead))
            dropped = await self._backends.catalog.entries.drop_states([(one.entry_id, one.step) for one in victims])
        except BaseException:
            # the rows still exist: the next insertion evicts these states again
            for state in victims:
                self.held.put(state)
            self._unindexed |= entries
            raise
        # States in memory hold no keys. Blobs of rows that an earlier try dropped without a reply are orphans, which
        # the collector finds.
        self.doomed.add([state.key for state in dropped])
        # A rebuild may have re-indexed dead entries between the two writes. Entries that lost their last latent must
        # lose their prompt vector, and those that lost their image must lose their image vector.
        spent = {entry_id for entry_id in entries if not self.shelf.alive(entry_id)}
        self._unindexed |= dead | spent | {state.entry_id for state in victims if state.is_picture}
        await self._index_pending()
        await self._tell_evicted(sorted(spent), sorted(entries - spent))
        self._show_sizes()

    async def lose(self, entry_id: str, step: int, key: str) -> None:
        """Remove a state whose blob a worker found missing or corrupt (step 0: the entry's image).

        Repeated reports do nothing. The state is removed as in an eviction. An entry whose image is gone is removed
        whole.
        """
        async with self._lock:
            found = await self._backends.catalog.entries.by_ids([entry_id])
            if step == PICTURE_STEP:
                await self._drop([entry for entry in found.values() if entry.picture_key == key])
                return
            named = {(one.step, one.key) for entry in found.values() for one in entry.states}
            state = self.shelf.get((entry_id, step))
            if state is not None and (step, key) in named:
                self.shelf.remove((entry_id, step))
                await self._take_away([state])

    async def shrink(self) -> None:
        """Evict until the budgets hold: after a restart with a smaller budget, or for images that became too old."""
        async with self._lock:
            await self._evict(self.held.make_room(self._clock.now()))

    async def purge(self, wanted: Callable[[Entry], bool]) -> Removed:
        """Remove whole entries at once, with leftovers of their jobs' failed attempts; images that a job names stay."""
        async with self._lock:
            doomed: list[Entry] = []
            after = ""
            while True:
                page, after = await self._backends.catalog.entries.page(1000, after)
                doomed += [entry for entry in page if wanted(entry)]
                if not after:
                    break
            await self._erase(doomed)
            removed = await self._drop(doomed)
            await self._erase(doomed)  # the first call may have failed for lack of disk space
            return removed

    async def _erase(self, entries: Sequence[Entry]) -> None:
        """Record in the catalog that leftovers of these entries' blobs skip the quarantine."""
        with suppress(StorageFullError):
            await self._backends.catalog.custody.erase([entry.job_id or entry.id for entry in entries])

    async def _drop(self, entries: Sequence[Entry]) -> Removed:
        if not entries:
            return Removed(0, 0, 0)
        ids = tuple(entry.id for entry in entries)
        self._check()
        await self._backends.index.remove(ids)
        try:
            gone = await self._drop_rows(entries)
        finally:  # check the index against the catalog, whether or not the rows were dropped
            self._unindexed.update(ids)
        await self._index_pending()
        states = [state for entry in gone for state in entry.states]
        for state in states:
            self.held.take(state)
        self.doomed.add([state.key for state in states] + [entry.picture_key for entry in gone])
        await self._tell_evicted(ids)
        self._show_sizes(more=-len(gone))
        latents = [state for state in states if not state.is_picture]
        return Removed(len(gone), len(latents), sum(state.bytes for state in latents))

    async def _drop_rows(self, entries: Sequence[Entry]) -> list[Entry]:
        ids = [entry.id for entry in entries]
        try:
            return await self._backends.catalog.entries.drop_entries(ids)
        except StorageFullError:
            # On a full disk, row deletion fails too: delete the latents' blobs first. A state without its blob is a
            # hole. Images stay, because jobs name them too.
            self._check()
            await self._backends.blobs.delete([state.key for entry in entries for state in entry.latents])
            return await self._backends.catalog.entries.drop_entries(ids)

    async def drop_spent(self) -> None:
        """Drop entries that only answered exact repeats and whose job expired."""
        async with self._lock:
            ids = await self._backends.catalog.entries.spent()
            if ids:
                await self._drop(list((await self._backends.catalog.entries.by_ids(ids)).values()))

    async def measure(self) -> None:
        """Set the gauges from row counts in the catalog. Too slow to run after every batch."""
        totals = await self._backends.catalog.entries.totals()
        METRICS.cache_bytes.set(totals.bytes)
        METRICS.cache_entries.set(totals.entries)
        METRICS.cache_states.set(totals.states)
        METRICS.cache_pictures.set(totals.pictures)
        METRICS.cache_picture_bytes.set(totals.picture_bytes)

    def _show_sizes(self, more: int = 0) -> None:
        """Set the gauges from the stores' sizes; `more` is the change in the number of catalog entries."""
        METRICS.cache_entries.inc(more)
        METRICS.cache_bytes.set(self.shelf.bytes)
        METRICS.cache_states.set(len(self.shelf))
        if self.pictures is not None:
            METRICS.cache_pictures.set(len(self.pictures.shelf))
            METRICS.cache_picture_bytes.set(self.pictures.shelf.bytes)


def _label(step: int) -> str:
    """Return a metric label for a step, with bounded cardinality for any number of steps."""
    if step == PICTURE_STEP:
        return "picture"
    return str(step) if step <= 50 else "above 50"
