"""Erasure on request: jobs leave index, catalog, blob store and memory at once (docs/how-to/erase.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from services.cache_maintainer.cache_index import IDS_IN_A_FACT
from services.cache_maintainer.orphan_collector import pages
from services.cache_maintainer.removals import Removals
from shared.catalog.erasing import Counts
from shared.domain.errors import AfterimageError, StorageFullError
from shared.domain.ids import is_id
from shared.domain.messages import DataErased, JobCancelled
from shared.runtime.telemetry import log
from shared.service.pairing import KINDS, job_of

AGAIN_S = (60.0, 600.0)
"""Seconds after which the upkeep repeats an erasure: a worker may still have stored a blob of a cancelled job, and a
plan that was made before may have been accepted or run after."""
FEW = 16
"""Jobs whose blobs are listed one by one; of more, the whole store is listed once."""


@dataclass
class Erased:
    """What an erasure removed, and what it could not."""

    removed: Counts = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    """Stores that failed, each as a sentence."""

    def add(self, counted: Counts) -> None:
        for kind, (number, size) in counted.items():
            before = self.removed.get(kind, (0, 0))
            self.removed[kind] = before[0] + number, before[1] + size


class Erasing(Removals):
    """Erases jobs with their entries. An erasure that failed in part is repeated, by the upkeep or by a second call."""

    async def erase(self, job_ids: Collection[str]) -> Erased:
        """Erase these jobs; try those again, without counting them, that an earlier call did not erase in full.

        Each store is tried, even if another one failed: what dangles then is a hole. On a full disk the catalog cannot
        note what is erased; the rows go all the same, once the blobs have made room.
        """
        found, ids = Erased(), sorted({*filter(is_id, job_ids)})
        earlier = self._unerased.difference(ids)
        if ids:
            await self._erase_now(found, ids)
            self._unerased = earlier.union(ids if found.left else ())
            self._again += [(self._clock.monotonic() + after_s, ids) for after_s in AGAIN_S]
        if earlier:
            await self.erase_again()
            found.left += ["what an earlier erasure left is still there"] * bool(self._unerased & earlier)
        return found

    async def _erase_now(self, found: Erased, ids: Sequence[str]) -> None:
        catalog, index = self._backends.catalog, self._backends.index
        async with self._lock:
            self._check()
            with suppress(StorageFullError):
                await catalog.custody.erase(ids)  # what an attempt may still store skips the quarantine
                await self._cancel(ids)
            await self._try(found, "index", lambda: index.remove(ids))
            await self._erase_stored(found, ids)
            for start in range(0, len(ids), IDS_IN_A_FACT):
                await self._tell(DataErased(tuple(ids[start : start + IDS_IN_A_FACT])))

    async def erase_again(self) -> None:
        """Repeat the erasures that failed, and those whose time has come."""
        now, found = self._clock.monotonic(), Erased()
        again = self._unerased.union(*(ids for at, ids in self._again if at <= now))
        self._again = [(at, ids) for at, ids in self._again if at > now]
        if not again:
            return
        async with self._lock:
            self._check()
            await self._erase_stored(found, sorted(again))
        self._unerased = again if found.left else self._unerased - again

    async def _erase_stored(self, found: Erased, ids: Sequence[str]) -> None:
        await self._try(found, "blobs", lambda: self._erase_blobs(found, ids))
        # after the blobs: on a full disk there is room now. The index forgets entries without a row when it answers.
        if await self._try(found, "catalog", lambda: self._erase_rows(found, ids)):
            self._unindexed.update(ids)

    async def _try(self, found: Erased, store: str, work: Callable[[], Awaitable[None]]) -> bool:
        try:
            await work()
        except AfterimageError as error:
            log("cache_maintainer").warning("not erased yet, tried again", store=store, error=str(error))
            found.left.append(f"{store}: {error.outside}")
            return False
        return True

    async def _cancel(self, ids: Sequence[str]) -> None:
        for job_id in await self._backends.catalog.erasing.cancel(ids):
            await self._tell(JobCancelled(job_id))

    async def _erase_rows(self, found: Erased, ids: Sequence[str]) -> None:
        catalog = self._backends.catalog
        entries = list((await catalog.entries.by_ids(ids)).values())
        counted = await catalog.erasing.erase(ids)
        found.add(counted)
        for entry in entries:
            for state in entry.states:
                self.held.take(state)
        for job_id in ids:
            self.held.masks.pop(job_id)
        if entries:
            await self._tell_evicted([entry.id for entry in entries])
            self._show_sizes(more=-len(entries))
        found.add(await catalog.erasing.unlink(ids))

    async def _erase_blobs(self, found: Erased, ids: Sequence[str]) -> None:
        wanted = set(ids)
        for kind in KINDS:
            prefixes = [f"{kind}{job_id}" for job_id in ids] if len(ids) <= FEW else [kind]
            for prefix in prefixes:
                async for page in pages(self._backends.blobs.list(prefix)):
                    own = [blob for blob in page if job_of(blob.key) in wanted]
                    await self._backends.blobs.delete([blob.key for blob in own])
                    if own:
                        found.add({kind: (len(own), sum(blob.bytes for blob in own))})
