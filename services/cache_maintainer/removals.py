"""Removal of states and entries: eviction, losses, purges (docs/architecture.md, Write order)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from services.cache_maintainer.cache_index import CacheIndex, step_label
from shared.domain.errors import AfterimageError, StorageFullError
from shared.domain.masks import MASK_STEP
from shared.domain.types import PICTURE_STEP, Entry, State
from shared.runtime.settings.tenants import Tenants
from shared.runtime.telemetry import METRICS, log

SPENT_AT_ONCE = 1000
"""Entries that are dropped while nothing else may change the cache."""


@dataclass(frozen=True, slots=True)
class Removed:
    """Counts of what a purge removed; `states` counts latents only, `bytes` latents and masks."""

    entries: int
    states: int
    bytes: int


class Removals(CacheIndex):
    """Removes from the index first, then from the catalog, then the blobs after the grace."""

    async def drop_picture(self, entry_id: str) -> None:
        """Remove the image from the window, so that no job starts from it.

        The blob stays for its job and for exact repeats.
        """
        async with self._lock:
            state = self.held.of(PICTURE_STEP).get((entry_id, PICTURE_STEP))
            if state is not None:
                self.held.take(state)
                await self._take_away([state])

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
            METRICS.evicted.labels(self.held.of(state.step).policy.name, step_label(state.step)).inc()

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
        await self._drop_idle_masks(spent)
        self._show_sizes()

    async def drop_idle_masks(self) -> None:
        """Remove masks that an eviction left, because the catalog was away or the process was killed."""
        async with self._lock:
            await self._drop_idle_masks([one for one in self.held.masks if one not in self._doubtful])

    async def _drop_idle_masks(self, entry_ids: Collection[str]) -> None:
        """Remove the masks of those entries that have no latent: there is nothing to stitch.

        Only log a failure, because the upkeep tries again.
        """
        idle = [one for one in entry_ids if one in self.held.masks and not self.shelf.alive(one)]
        try:
            if idle:
                await self._drop_masks(idle)
        except AfterimageError as error:
            log("cache_maintainer").warning("masks not removed, tried again", entries=len(idle), error=str(error))

    async def _drop_masks(self, entry_ids: Collection[str], key: str = "") -> bool:
        """Remove the masks of these entries, with `key` only those under that key; return whether any was removed."""
        self._check()
        keys = await self._backends.catalog.entries.drop_masks(sorted(entry_ids), key) if entry_ids else []
        for entry_id in entry_ids if keys or not key else ():
            self.held.masks.pop(entry_id)
        self.doomed.add(keys)
        return bool(keys)

    async def lose(self, entry_id: str, step: int, key: str) -> None:
        """Remove a state whose blob a worker found missing or corrupt (step 0: the entry's image).

        Repeated reports do nothing. The state is removed as in an eviction, with the states that need it. An entry
        whose image is gone is removed whole; one whose masks are gone keeps its states.
        """
        async with self._lock:
            if step == MASK_STEP:
                if await self._drop_masks([entry_id], key):
                    await self._tell_evicted([], [entry_id])
                return
            found = await self._backends.catalog.entries.by_ids([entry_id])
            if step == PICTURE_STEP:
                await self._drop([entry for entry in found.values() if entry.picture_key == key])
                return
            named = {(one.step, one.key) for entry in found.values() for one in entry.states}
            lost = self.shelf.lost_with((entry_id, step))
            if lost and (step, key) in named:
                for state in lost:
                    self.shelf.remove((entry_id, state.step))
                await self._take_away(lost)

    async def shrink(self) -> None:
        """Evict until the budgets hold, after a restart with a smaller one."""
        async with self._lock:
            await self._evict(self.held.make_room(self._clock.now()))

    async def keep_limits(self, settings: Tenants) -> None:
        """Evict the least recently used of each tenant that has more in the cache than its `cache_bytes`."""
        if all(one.cache_bytes is None for one in settings.tenant_limits.values()):
            return
        entries = self._backends.catalog.entries
        for tenant, size in (await entries.bytes_by_tenant()).items():
            most = settings.limits_of(tenant).cache_bytes
            while most is not None and size > most:
                async with self._lock:
                    victims = await entries.least_recently_used(tenant, size - most)
                    for state in victims:
                        self.held.take(state)
                    await self._evict(victims)
                if not victims:
                    break
                size -= sum(state.bytes for state in victims)

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
        for entry_id in ids:
            self.held.masks.pop(entry_id)
        masks = [entry.mask.key for entry in gone if entry.mask is not None]
        self.doomed.add([state.key for state in states] + [entry.picture_key for entry in gone] + masks)
        await self._tell_evicted(ids)
        self._show_sizes(more=-len(gone))
        latents = [state for state in states if not state.is_picture]
        freed = sum(state.bytes for state in latents) + sum(one.mask.bytes for one in gone if one.mask is not None)
        return Removed(len(gone), len(latents), freed)

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

    async def drop_spent(self, max_age_s: float) -> None:
        """Drop entries older than this (0: none), and those that only answered exact repeats of an expired job."""
        entries, dropped = self._backends.catalog.entries, 1
        while dropped:
            async with self._lock:  # released between two pages, for what waits meanwhile
                found = await entries.by_ids(await entries.spent(SPENT_AT_ONCE, max_age_s))
                dropped = (await self._drop(list(found.values()))).entries
