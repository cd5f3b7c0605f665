"""Fanout of job events to waiting calls: an event wakes a call, and the job's row decides its answer
(docs/architecture.md, Delivery rules)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol

from cachetools import FIFOCache

from shared.bus import Bus, Subscription
from shared.domain.errors import OverloadedError, UnavailableError
from shared.domain.messages import JobCancelled, JobFailed, JobSucceeded, Message, Progress
from shared.domain.types import Job, JobState

POLL_S = 1.0
"""Seconds between reads of the row while a call waits, because events may be lost (a broker restart). The row is also
read while progress arrives: a worker that lost its job keeps reporting progress until its next renewal."""
DRAINING_POLL_S = 0.2
MOST_WATCHES = 32
"""Calls that may wait for one job: each reads its row every POLL_S, and a retry takes no place in the queue."""
STEPS_KEPT = 4096
"""Jobs whose last step is kept."""
_KINDS: tuple[type[Message], ...] = (Progress, JobSucceeded, JobFailed, JobCancelled)


class Rows(Protocol):
    async def get(self, job_id: str) -> Job: ...


class Watch:
    """The events of one job for one waiting call; only the last 32 are kept."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self._facts: deque[Message] = deque(maxlen=32)
        self._news = asyncio.Event()

    def hear(self, fact: Message) -> None:
        self._facts.append(fact)
        self._news.set()

    def wake(self) -> None:
        self._news.set()

    async def next(self, timeout_s: float) -> Message | None:
        """Return the next event; None when there is none within `timeout_s`, or on `wake`."""
        if not self._facts:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
        self._news.clear()
        return self._facts.popleft() if self._facts else None


class Fanout:
    """One subscription per gateway, one watch per waiting call."""

    def __init__(self, bus: Bus, on_end: Callable[[str], None]) -> None:
        """on_end: called with the id of every job that ended, waited for or not."""
        self._bus, self._on_end = bus, on_end
        self._watches: dict[str, set[Watch]] = defaultdict(set)
        self._subscription: Subscription | None = None
        self._steps: FIFOCache[str, int] = FIFOCache(STEPS_KEPT)
        self.draining = False
        self.on_drain: list[Callable[[], None]] = []

    async def start(self) -> None:
        self._subscription = await self._bus.subscribe(_KINDS, self._heard)

    async def stop(self) -> None:
        if self._subscription is not None:
            await self._subscription.close()

    def drain(self) -> None:
        """Make waiting calls fail from now on if this process will not finish their job."""
        self.draining = True
        for watches in self._watches.values():
            for watch in watches:
                watch.wake()
        for wake in self.on_drain:
            wake()

    def waited_for(self, job_id: str, *, besides: Watch | None = None) -> bool:
        return bool(self._watches.get(job_id, set()) - {besides})

    @contextlib.contextmanager
    def watch(self, job_id: str) -> Iterator[Watch]:
        """Watch a job's events from now on. Open the watch before the row is written or read, so that no event is
        missed."""
        watch = Watch(job_id)
        self._watches[job_id].add(watch)
        try:
            yield watch
        finally:
            self._forget(watch)

    def redirect(self, watch: Watch, job_id: str) -> None:
        """Watch another job from now on. Its row is read at once, since that job may have ended before.

        Raises OverloadedError for a job that MOST_WATCHES calls wait for.
        """
        if len(self._watches.get(job_id, ())) >= MOST_WATCHES:
            said = f"{MOST_WATCHES} calls wait for job {job_id} here, as many as may; end one, and ask again"
            raise OverloadedError(said, retry_after_s=POLL_S)
        self._forget(watch)
        watch.job_id = job_id
        self._watches[job_id].add(watch)
        watch.wake()

    def _forget(self, watch: Watch) -> None:
        self._watches[watch.job_id].discard(watch)
        if not self._watches[watch.job_id]:
            del self._watches[watch.job_id]

    async def follow(
        self, watch: Watch, rows: Rows, on_success: Callable[[JobSucceeded], object] = lambda _: None
    ) -> AsyncIterator[Progress | Job]:
        """Yield progress as it arrives, the row on every slow poll, and last the row in its final state.

        `on_success` is called with the event before the row is read; the row decides whether the event counts. Raises
        UnavailableError when this gateway stops before the job has ended.
        """
        now = asyncio.get_running_loop().time
        looked = now()
        while True:
            left_s = (DRAINING_POLL_S if self.draining else POLL_S) - (now() - looked)
            fact = await watch.next(max(left_s, 0.0))
            if isinstance(fact, Progress):
                yield fact
                if left_s > 0:
                    continue
            if isinstance(fact, JobSucceeded):
                on_success(fact)
            job, looked = await rows.get(watch.job_id), now()
            if not job.state.final and self.draining and self._goes_on_without_us(job):
                raise UnavailableError(
                    f"this gateway is shutting down; job {job.id} goes on, ask another replica for it",
                    retry_after_s=0.5,
                )
            yield job
            if job.state.final:
                return

    def _goes_on_without_us(self, job: Job) -> bool:
        """Return whether the job continues after this process ends: queued jobs do, and jobs on workers of other
        processes. A worker of this process finishes its running jobs while it drains."""
        return not self._bus.process_local or job.state is JobState.QUEUED

    def step(self, job: Job) -> int:
        """Return the last step that a worker reported or stored of this job's run."""
        return max(job.checkpoint_step, self._steps.get(job.id, 0))

    async def _heard(self, fact: Message) -> None:
        if isinstance(fact, Progress):
            self._steps[fact.job_id] = fact.step
        if isinstance(fact, JobSucceeded | JobFailed | JobCancelled):
            self._on_end(fact.job_id)
        job_id = getattr(fact, "job_id", "")
        for watch in self._watches.get(job_id, ()):
            watch.hear(fact)
