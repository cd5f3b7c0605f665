"""The cache's writes, ordered so that the index never names a missing blob (docs/architecture.md, Write order)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from services.cache_maintainer.admission import admit, keeping, left_out, offer_of
from services.cache_maintainer.cache_index import step_label
from services.cache_maintainer.erasing import Erasures
from shared.domain.errors import NotFoundError, UnreadableRowError, passes
from shared.domain.masks import Mask
from shared.domain.messages import EntriesCached
from shared.domain.types import PICTURE_STEP, Entry, Job, Modality
from shared.runtime.telemetry import METRICS, log


class Cache(Erasures):
    """Inserts, evicts, purges and erases entries, one operation at a time; deletes blobs after the grace."""

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
            for entry in entries:  # masks that came before their entry take room from the latents
                if entry.mask is not None:
                    self.held.masks.put(entry.id, entry.mask.bytes)
            taken = self.held.take_in([offer_of(entry, by_id[entry.id], now) for entry in entries], now)
            kept = [keeping(*one) for one in zip(entries, taken.kept, strict=True)]
            for entry in kept:
                if entry.mask is None:
                    self.held.masks.pop(entry.id)
            await self._evict(taken.victims)
            return await self._add(kept, by_id)

    async def only_waiting(self, job_ids: Collection[str]) -> None:
        """Drop the bookkeeping of all jobs but these: the others were cached, or expired."""
        self.setbacks.keep(job_ids)
        async with self._lock:  # wait for insertions in progress: their jobs are neither cached nor expired
            self.held.only_waiting(job_ids)

    def holds_picture(self, entry_id: str) -> bool:
        """Return whether the window holds the entry's image; jobs can start from the image once it is embedded."""
        return self.pictures is not None and self.pictures.shelf.get((entry_id, PICTURE_STEP)) is not None

    async def index_pending(self) -> None:
        """Index the entries whose earlier index writes failed."""
        async with self._lock:  # without the lock, an entry that is being evicted would return to the index
            await self._look_again()
            await self._index_pending()

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
            await self.tell(EntriesCached(tuple(found)))
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
            try:
                if await self._backends.catalog.entries.add(entry, jobs[entry.id].vectors):
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
            await self.tell(EntriesCached(tuple(entry.id for entry in added)))
            self._show_sizes(more=len(added))
        if failed:
            raise failed[0]
        return added

    async def note_mask(self, job_id: str, mask: Mask) -> None:
        """Note the masks of this job's result, before or after its entry exists; repeated notes do nothing.

        A blob that no row may name is deleted after the grace. Searches of other processes then read the entry again.
        """
        async with self._lock:
            entries = self._backends.catalog.entries
            if not await entries.note_mask(job_id, mask):
                self.doomed.add([mask.key])
                return
            entry = (await entries.by_ids([job_id])).get(job_id)  # an entry has the id of its job
            if entry is None or entry.mask is None:
                return
            self.held.masks.put(entry.id, entry.mask.bytes)
            await self._tell_evicted([], [entry.id])  # copies in memory have no masks
            await self._evict(self.held.make_room(self._clock.now()))

    def _shelve(self, entry: Entry) -> None:
        now = self._clock.now()
        if entry.mask is not None:
            self.held.masks.put(entry.id, entry.mask.bytes)
        for state in entry.states:
            at = replace(state, created_at=state.created_at or now, used_at=state.used_at or now)
            self.held.put(at.bare())
            self.counts.inserted += not state.is_picture
            METRICS.inserted.labels(step_label(state.step)).inc()
        if entry.states:
            self._unindexed.add(entry.id)
