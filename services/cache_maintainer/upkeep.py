"""Upkeep of the cache: what the maintainer repeats, whether or not events ask for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from services.cache_maintainer.background_work import BackgroundWork
from services.cache_maintainer.cache_writes import Cache
from services.cache_maintainer.orphan_collector import Collector
from services.cache_maintainer.pictures import Pictures
from services.cache_maintainer.recent_entries import NEWEST
from services.cache_maintainer.retry_schedule import RetrySchedule
from shared.domain.masks import Mask
from shared.domain.messages import JobCancelled
from shared.domain.requests import MOST_DEADLINE_S
from shared.index.rebuild import repair_index
from shared.runtime.settings import Settings
from shared.runtime.telemetry import log
from shared.service import Context
from shared.service.backends import Backends
from shared.service.leadership import Leadership

LEAST_KEPT_S = 60.0
"""Seconds for which a job stays after its end, whatever its tenant's limit: it becomes an entry, and is read."""
MOST_UNNOTED = 1000
"""Jobs whose masks wait to be noted, at most. A clip whose masks are dropped starts no pair, and loses nothing else."""


class Upkeep:
    """The recurring work of a leading maintainer."""

    cache: Cache
    _backends: Backends
    _behind: bool
    _collector: Collector
    _leadership: Leadership
    _context: Context
    _first: list[Callable[[], Awaitable[Any]]]
    """Works of a new leader that are not done yet."""
    _mask_setbacks: RetrySchedule
    _masks: dict[str, Mask]
    """Masks by job that are not noted yet, because the catalog was away: the bus gives up after a few tries."""
    _pictures: Pictures
    _unembedded: asyncio.Event
    _work: BackgroundWork

    @property
    def _settings(self) -> Settings:
        return self._context.settings

    async def _insert(self, job_ids: Sequence[str]) -> None:
        try:
            added = await self.cache.insert(job_ids)
        except BaseException:
            self._pictures.behind = True  # some entries may be in the cache despite the error
            raise
        if self._pictures.hear(added):
            self._unembedded.set()

    async def catch_up(self) -> None:
        """Cache, or drop, finished jobs whose events were missed or whose insertion failed.

        Those that finish meanwhile are left to their events: on a busy server this could go on for hours, and nothing
        would expire.
        """
        self._behind, most = False, self._settings.cache_batch_max
        try:
            waiting = await self._backends.catalog.jobs.to_cache()
            for at in range(0, len(waiting), most):
                await self._insert(waiting[at : at + most])
        except BaseException:
            self._behind = True
            raise
        await self.cache.only_waiting(waiting)

    async def _begin(self) -> None:
        """Do what a new leader does once. The upkeep tries again what failed: the catalog may not answer at first."""
        self._first = [work for work in self._first if not await self._work.guarded(work)]

    async def collect(self) -> None:
        """Cancel jobs that waited too long, expire results, drop entries that are too old or have no more use, and
        collect orphan blobs.

        A step that fails does not stop the other steps.
        """
        work = (self._cancel_stale, self._expire, self._drop_spent, self.catch_up, self._repair_index)
        for step in (*work, self._collect_orphans, self.cache.measure):
            await self._work.guarded(step)

    async def _segmented(self, job_id: str, mask: Mask) -> None:
        """Note masks, and keep those that cannot be noted for the next upkeep."""
        self._masks[job_id] = mask
        if len(self._masks) > MOST_UNNOTED:
            self._masks.pop(next(iter(self._masks)))
        await self.cache.note_mask(job_id, mask)
        self._masks.pop(job_id, None)

    async def _note_masks(self) -> None:
        now = self._context.clock.monotonic()
        self._mask_setbacks.keep(self._masks)
        for job_id in [one for one in self._masks if self._mask_setbacks.due(one, now)]:
            try:
                if job_id in self._masks:  # not noted in the meantime
                    await self._segmented(job_id, self._masks[job_id])
            except Exception as error:  # the other jobs' masks must not wait for this one
                again_in_s = self._mask_setbacks.failed(job_id, now)
                log("cache_maintainer").warning(
                    "masks not noted, tried again", job=job_id, again_in_s=again_in_s, error=repr(error)
                )

    async def _expire(self) -> None:
        jobs, settings = self._backends.catalog.jobs, self._settings
        self.cache.doomed.add(await jobs.expire(settings.results_keep_s))
        if any(one.kept_jobs is not None for one in settings.tenant_limits.values()):
            beyond = jobs.expire_beyond(lambda one: settings.limits_of(one).kept_jobs, older_than_s=LEAST_KEPT_S)
            self.cache.doomed.add(await beyond)

    async def _cancel_stale(self) -> None:
        for job_id in await self._backends.catalog.jobs.cancel_stale(MOST_DEADLINE_S):
            log("cache_maintainer").warning("job waited too long", job=job_id)
            await self.cache.tell(JobCancelled(job_id))

    async def _drop_spent(self) -> None:
        await self.cache.drop_spent(self._settings.cache_max_age_s)

    async def _repair_index(self) -> None:
        """Make the index agree with the catalog: a kill of maintainer or server between two writes may leave them
        different."""
        backends = self._backends
        if not backends.index.process_local:
            found = await repair_index(backends.catalog, backends.index, lambda _: None)
            if found.added or found.removed:
                log("cache_maintainer").info("index repaired", added=found.added, removed=found.removed)

    async def _doubt_newest(self) -> None:
        """Schedule a check of the newest entries: a killed leader may have written them to the catalog only."""
        newest, _ = await self._backends.catalog.entries.page(NEWEST)
        self.cache.note_fresh(entry.id for entry in newest if entry.states)

    async def _find_fresh(self) -> None:
        if again := await self.cache.find_fresh():
            log("cache_maintainer").info("entries indexed again", entries=again)

    async def _collect_orphans(self) -> None:
        await self._collector.collect()

    async def _tidy(self) -> None:
        await self._begin()
        work = (self._delete_evicted, self._note_masks, self.cache.index_pending, self.cache.shrink, self._keep_limits)
        for step in (*work, self._find_fresh, self.cache.drop_idle_masks, self.cache.erase_again):
            await self._work.guarded(step)
        if self._pictures.look_again():  # images remain, because the embedder was unreachable or one image failed
            self._unembedded.set()
        # with several replicas, an event may have reached a former leader, or was lost with its broker
        if self._behind or not self._leadership.alone:
            await self.catch_up()

    async def _keep_limits(self) -> None:
        await self.cache.keep_limits(self._settings)

    async def _delete_unread(self) -> None:
        if await self._collector.may_delete():
            await self.cache.doomed.delete(unread=True)

    async def _delete_evicted(self) -> None:
        if await self._collector.may_delete():
            await self.cache.doomed.delete()
