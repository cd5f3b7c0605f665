"""Erasure on request: jobs leave index, catalog, blob store and memory at once (docs/how-to/erase.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from services.cache_maintainer.cache_index import IDS_IN_A_FACT, Repeat
from services.cache_maintainer.removals import Removals
from shared.blobs import pages
from shared.catalog.erasing import Counts
from shared.domain.errors import AfterimageError, StorageFullError
from shared.domain.ids import is_id, new_id
from shared.domain.messages import DataErased, JobCancelled
from shared.runtime.telemetry import log
from shared.service.pairing import KINDS, job_of

AGAIN_S = (60.0, 600.0)
"""Seconds after which the upkeep repeats an erasure: a worker may still have stored a blob of a cancelled job, and a
plan that was made before may have been accepted or run after. The last one is repeated until no job runs that ran at
the erasure."""
FEW = 16
"""Jobs whose blobs are listed one by one; of more, the whole store is listed once."""

LISTED = 500
"""Blobs that are listed and deleted at once."""


@dataclass
class Erased:
    """The rows and blobs that an erasure removed, and the stores that failed."""

    removed: Counts = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    """Stores that failed, each as a sentence."""

    def add(self, counted: Counts) -> None:
        for kind, (number, size) in counted.items():
            before = self.removed.get(kind, (0, 0))
            self.removed[kind] = before[0] + number, before[1] + size


class Erasures(Removals):
    """Erases jobs with their entries. An erasure that failed in part is repeated, by the upkeep or by a second call."""

    async def erase(self, job_ids: Collection[str], tenant: str = "") -> Erased:
        """Erase these jobs; try those of the tenant again, without counting them, that an earlier call did not erase in
        full.

        tenant: whose data is erased; empty: that of one job.

        Each store is tried, even if another one failed: what dangles then is a hole. On a full disk the catalog cannot
        note what is erased; the rows go all the same, once the blobs have made room.
        """
        found, ids = Erased(), sorted({*filter(is_id, job_ids)})
        earlier = {job_id for job_id, owner in self._unerased.items() if tenant and owner == tenant}.difference(ids)
        if ids:
            owners = dict.fromkeys(ids, tenant or await self._tenant_of(ids[0]))
            self._repeat(owners)  # first: an erasure that is interrupted is repeated, too
            await self._erase_now(found, owners)
        if earlier:
            await self.erase_again()
            found.left += ["what an earlier erasure left is still there"] * bool(earlier & self._unerased.keys())
        return found

    async def _tenant_of(self, job_id: str) -> str:
        """Return whose job this is; empty where its row is gone, or cannot be read now."""
        with suppress(AfterimageError):
            return (await self._backends.catalog.jobs.get(job_id)).request.tenant
        return ""

    def _repeat(self, owners: Mapping[str, str]) -> None:
        now = self._clock.monotonic()
        for after_s, older in zip(AGAIN_S, ("", new_id()), strict=True):
            self._again.append(Repeat(now + after_s, owners, older))

    async def recall_erasures(self) -> None:
        """Repeat what an earlier leader erased lately: it may have ended before it could."""
        if ids := await self._backends.catalog.custody.erased_since(2 * AGAIN_S[-1]):
            self._repeat(dict.fromkeys(ids, ""))

    async def erase_again(self) -> None:
        """Repeat the erasures that failed, and those whose time has come."""
        now = self._clock.monotonic()
        due = [one for one in self._again if one.at <= now]
        again = {job_id: tenant for one in due for job_id, tenant in one.owners.items()} | self._unerased
        if not again:
            return
        runs, later = self._backends.catalog.erasing.runs, now + AGAIN_S[-1]
        held = [replace(one, at=later) for one in due if one.older and await runs(one.older)]
        await self._erase_now(Erased(), again)
        self._again = [one for one in (*self._again, *held) if one not in due]

    async def _erase_now(self, found: Erased, owners: Mapping[str, str]) -> None:
        """Erase from each store. The rows go last, so that a second call finds the jobs of an interrupted one."""
        index, ids = self._backends.index, sorted(owners)
        async with self._lock:
            self._check()
            await self._try(found, "catalog", lambda: self._end_jobs(ids))
            await self._try(found, "index", lambda: index.remove(ids))
            await self._try(found, "blobs", lambda: self._erase_blobs(found, ids))
            # after the blobs: on a full disk there is room now. The index forgets entries without a row once it answers
            if await self._try(found, "catalog", lambda: self._erase_rows(found, ids)):
                self._unindexed.update(ids)
            await self._try(found, "live checks", self._end_checks)  # their jobs have copies of requests
            for start in range(0, len(ids), IDS_IN_A_FACT):
                await self.tell(DataErased(tuple(ids[start : start + IDS_IN_A_FACT])))
        for job_id, tenant in owners.items():
            if found.left:
                self._unerased[job_id] = tenant or self._unerased.get(job_id, "")
            else:
                self._unerased.pop(job_id, None)

    async def _try(self, found: Erased, store: str, work: Callable[[], Awaitable[None]]) -> bool:
        try:
            await work()
        except AfterimageError as error:
            log("cache_maintainer").warning("not erased yet, tried again", store=store, error=str(error))
            said = f"{store}: {error.outside}"
            found.left += [said] * (said not in found.left)
            return False
        return True

    async def _end_jobs(self, ids: Sequence[str]) -> None:
        with suppress(StorageFullError):
            await self._backends.catalog.custody.erase(ids)  # what an attempt may still store skips the quarantine
            for job_id in await self._backends.catalog.erasing.cancel(ids):
                await self.tell(JobCancelled(job_id))

    async def _erase_rows(self, found: Erased, ids: Sequence[str]) -> None:
        catalog = self._backends.catalog
        entries = list((await catalog.entries.by_ids(ids)).values())
        found.add(await catalog.erasing.unlink(ids))
        found.add(await catalog.erasing.erase(ids))
        for entry in entries:
            for state in entry.states:
                self.held.take(state)
        for job_id in ids:
            self.held.masks.pop(job_id)
        if entries:
            await self._tell_evicted([entry.id for entry in entries])
            self._show_sizes(more=-len(entries))

    async def _erase_blobs(self, found: Erased, ids: Sequence[str]) -> None:
        wanted = set(ids)
        for kind in KINDS:
            prefixes = [f"{kind}{job_id}" for job_id in ids] if len(ids) <= FEW else [kind]
            for prefix in prefixes:
                async for page in pages(self._backends.blobs.list(prefix), LISTED):
                    own = [blob for blob in page if job_of(blob.key) in wanted]
                    await self._backends.blobs.delete([blob.key for blob in own])
                    if own:
                        found.add({kind: (len(own), sum(blob.bytes for blob in own))})
