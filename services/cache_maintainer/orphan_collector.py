"""Finds unreferenced blobs and deletes them after a quarantine (docs/architecture.md, Blob ownership)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from shared.blobs import pages
from shared.runtime.clock import Clock
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS, log
from shared.service.backends import Backends
from shared.service.pairing import KINDS, compare, job_of, mismatch, places_of

AT_ONCE = 500
LARGE_BLOBS, LARGE_SHARE = 100, 0.1
"""A pass that would delete more blobs than both limits (a count, a share of the store) waits for an operator."""
REASONS = ("mismatch", "unadopted", "large")


@dataclass(frozen=True, slots=True)
class Findings:
    """Results of one pass, in blobs."""

    blobs: int = 0
    """Blobs in the store."""
    unnamed: int = 0
    """Blobs in quarantine, including the due ones."""
    due: int = 0
    """Blobs whose quarantine is over."""
    erased: int = 0
    """Leftovers of erased jobs and purged entries; they skip the quarantine."""
    deleted: int = 0
    held: str = ""
    """The one of REASONS for which the due blobs stay; empty if they may be deleted."""
    said: str = ""
    """The reason in words, and what to do."""


def judge_size(found: Findings) -> Findings:
    """Hold back a pass that would delete suspiciously many blobs."""
    if found.due <= LARGE_BLOBS or found.due <= LARGE_SHARE * found.blobs:
        return found
    said = (
        f"{found.due} of {found.blobs} blobs were unreferenced for the whole quarantine: more than "
        f"{LARGE_BLOBS} and more than {LARGE_SHARE:.0%}. If the catalog is the right one and complete, delete them "
        "with `afterimage cache collect --yes`"
    )
    return replace(found, held="large", said=said)


class Collector:
    """Runs collection passes for the maintainer, one at a time."""

    def __init__(self, backends: Backends, clock: Clock, settings: Settings, check: Callable[[], None]) -> None:
        """`check` raises when this process may not delete any more."""
        self._backends, self._clock, self._check = backends, clock, check
        self._grace_s, self._quarantine_s = settings.blob_grace_s, settings.quarantine_s
        self._at = places_of(settings)
        self._lock = asyncio.Lock()
        self._said = ""

    async def may_delete(self) -> bool:
        """Return False, and log an error, if the store belongs to another catalog; accept a store without an id."""
        said = await mismatch(self._backends.catalog, self._backends.blobs, self._at)
        if said and said != self._said:  # called often: logged once, and again by each pass
            self._show(Findings(held="mismatch", said=said))
        self._said = said
        return not said

    async def collect(self, *, confirmed: bool = False, only_look: bool = False) -> Findings:
        """Make one pass over the store: mark unreferenced blobs older than the grace, then delete the due ones.

        `confirmed`: delete the due blobs, even if they are many. `only_look`: mark, and delete nothing.
        """
        async with self._lock:
            pairing = await compare(self._backends.catalog, self._backends.blobs, self._at)
            if pairing.state != "paired":
                return self._show(Findings(held=pairing.state, said=pairing.said))
            found = await self._survey(only_look)
            if not confirmed:
                found = judge_size(found)
            if not only_look and not found.held:
                gone = await self._delete_due()
                found = replace(found, deleted=found.deleted + gone, unnamed=found.unnamed - found.due)
            return self._show(found)

    def _show(self, found: Findings) -> Findings:
        for reason in REASONS:
            METRICS.collection_held.labels(reason).set(found.held == reason)
        if found.held == "mismatch":
            log("cache_maintainer").error("nothing is collected", why=found.held, error=found.said)
        elif found.held:
            log("cache_maintainer").warning("orphans stay", why=found.held, error=found.said)
        if found.held in ("", "large"):
            METRICS.quarantined.set(found.unnamed)
        if found.deleted:
            log("cache_maintainer").info("orphans collected", blobs=found.deleted)
        return found

    async def _survey(self, only_look: bool) -> Findings:
        """Mark unreferenced blobs, and delete leftovers of erasures and purges, which skip the quarantine."""
        custody, found = self._backends.catalog.custody, Findings()
        began_at, old = await custody.now(), self._clock.now() - self._grace_s
        for kind in KINDS:
            async for page in pages(self._backends.blobs.list(kind), AT_ONCE):
                unnamed = await self._unnamed([blob.key for blob in page if blob.modified_at < old])
                jobs = await custody.erased(sorted({job_of(key) for key in unnamed}), self._grace_s) if unnamed else ()
                erased = [key for key in unnamed if job_of(key) in jobs]
                await custody.mark([key for key in unnamed if job_of(key) not in jobs])
                found = replace(found, blobs=found.blobs + len(page), erased=found.erased + len(erased))
                if erased and not only_look:
                    found = replace(found, deleted=found.deleted + await self._delete(erased))
        await custody.end_pass(began_at, self._grace_s + self._quarantine_s)
        unnamed_count, due = await custody.counts(self._quarantine_s)
        return replace(found, unnamed=unnamed_count, due=due)

    async def _delete_due(self) -> int:
        custody, deleted = self._backends.catalog.custody, 0
        while keys := await custody.due(self._quarantine_s, AT_ONCE):
            deleted += await self._delete(await self._unnamed(keys))
            await custody.release(keys)
        return deleted

    async def _delete(self, keys: list[str]) -> int:
        self._check()
        await self._backends.blobs.delete(keys)
        return len(keys)

    async def _unnamed(self, keys: list[str]) -> list[str]:
        """Return the keys that no row names and whose job is not running."""
        catalog = self._backends.catalog
        named = await catalog.entries.referenced(keys)
        rest = [key for key in keys if key not in named]
        # a worker stores blobs first, and names them on the row when the job is done
        working = await catalog.custody.in_work(sorted({job_of(key) for key in rest}))
        idle = [key for key in rest if job_of(key) not in working]
        # a job that finished between the two queries names its blobs now
        named = await catalog.entries.referenced(idle)
        return [key for key in idle if key not in named]
