"""Publishing and indexing of the cache's contents, shared by insertion and removal (docs/architecture.md, Write
order)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from services.cache_maintainer.contents import CacheContents
from services.cache_maintainer.deferred_deletes import DeferredDeletes
from services.cache_maintainer.eviction.scored import StateStore
from services.cache_maintainer.eviction.window import Window
from services.cache_maintainer.recent_entries import Fresh
from services.cache_maintainer.retry_schedule import RetrySchedule
from shared.domain.errors import AfterimageError
from shared.domain.messages import EntriesEvicted, Message
from shared.domain.types import PICTURE_STEP
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
class Repeat:
    """An erasure to repeat, at a monotonic time in seconds."""

    at: float
    owners: Mapping[str, str]
    """Tenants of the erased jobs; empty: unknown."""
    older: str = ""
    """Repeat later again while a job runs that is older than this id: its worker may write the plan that it holds."""


async def _nothing() -> None:
    return


class CacheIndex:
    """The parts that insertion and removal share: the lock, what is held, the index and the events."""

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
        end_checks: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        """Share the state store `shelf` and the backends with the service.

        `check` raises when this process may not write any more. It is called before writes that the catalog cannot
        fence. `max_bytes` is the latents' budget. `pictures` is the window of images that other models may start from,
        if any. `pictures_of(model)` returns whether this model's images belong in that window. `end_checks` deletes the
        jobs of live checks, which copy clients' requests.
        """
        self.held = CacheContents(shelf, pictures, max_bytes)
        self.shelf, self.pictures = shelf, pictures
        self._pictures_of = pictures_of
        self.counts = Counts()
        self._backends = backends
        self._clock = clock
        self._check = check
        self._end_checks = end_checks
        self._lock = asyncio.Lock()
        self.setbacks = RetrySchedule()
        self._doubtful: set[str] = set()
        """Entries whose insertion failed, or succeeded without a reply."""
        self._unindexed: set[str] = set()
        """Entries whose row changed and whose index object may be stale."""
        self._unerased: dict[str, str] = {}
        """Jobs of erasures that failed in part, with their tenants; empty: unknown."""
        self._again: list[Repeat] = []
        self._fresh = Fresh()
        self.doomed = DeferredDeletes(backends, clock, grace_s, check)

    async def _tell_evicted(self, entry_ids: Sequence[str], holes: Sequence[str] = ()) -> None:
        """Publish evictions, split into events that fit the broker's size limit."""
        for start in range(0, max(len(entry_ids), len(holes)), IDS_IN_A_FACT):
            part = slice(start, start + IDS_IN_A_FACT)
            await self.tell(EntriesEvicted(tuple(entry_ids[part]), tuple(holes[part])))

    async def tell(self, fact: Message) -> None:
        """Publish an event; only log a failure, because consumers that miss the event reread the catalog."""
        try:
            await self._backends.bus.publish(fact)
        except AfterimageError as error:
            log("cache_maintainer").warning("bus unreachable, event lost", fact=type(fact).__name__, error=str(error))

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
        METRICS.cache_bytes.set(self.shelf.bytes + self.held.masks.total)
        METRICS.cache_states.set(len(self.shelf))
        if self.pictures is not None:
            METRICS.cache_pictures.set(len(self.pictures.shelf))
            METRICS.cache_picture_bytes.set(self.pictures.shelf.bytes)


def step_label(step: int) -> str:
    """Return a metric label for a step, with bounded cardinality for any number of steps."""
    if step == PICTURE_STEP:
        return "picture"
    return str(step) if step <= 50 else "above 50"
