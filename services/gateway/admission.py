"""Admission: refuse a job when the queue is full, or its tenant's share of it, with a delay after which to retry
(docs/architecture.md, Delivery rules; docs/adr/0029-fair-shares.md)."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping

from shared.catalog.jobs.checks import CHECKS
from shared.domain.errors import OverloadedError

_MIN_DELAY_S, _MAX_DELAY_S, _UNKNOWN_DELAY_S = 0.1, 60.0, 1.0
_FAR_S = 10.0
"""Longest delay in seconds up to which places are reserved for refused clients, because a refused client may never come
back."""
MOST_SENT_AWAY = 1000
"""Tenants whose refused clients have places reserved."""


class FinishRate:
    """Jobs finished per second over the last `window_s` seconds."""

    def __init__(self, window_s: float = 30.0) -> None:
        self._window_s = window_s
        self._times: deque[float] = deque(maxlen=10_000)

    def finished(self, now: float) -> None:
        self._times.append(now)

    def per_s(self, now: float) -> float:
        while self._times and self._times[0] < now - self._window_s:
            self._times.popleft()
        if not self._times:
            return 0.0
        return len(self._times) / max(now - self._times[0], 1.0)


def retry_delay_s(queued: int, max_queued: int, finished_per_s: float) -> float:
    """Return the seconds until a place is free, if jobs keep finishing at this rate; 1 s when the rate is unknown, 60 s
    at most."""
    if finished_per_s <= 0:
        return _UNKNOWN_DELAY_S
    ahead = max(queued - max_queued + 1, 1)
    return min(max(ahead / finished_per_s, _MIN_DELAY_S), _MAX_DELAY_S)


class RetryAfter:
    """Retry delays of refused clients: each delay ends when a place should be free after the clients refused earlier.

    With equal short delays, hundreds of clients would come back together for one place. Refusing them would cost more
    than generating images.
    """

    def __init__(self) -> None:
        self._last_at = float("-inf")

    def delay_s(self, queued: int, max_queued: int, finished_per_s: float, now: float) -> float:
        """Return the seconds until this client's turn."""
        first_s = retry_delay_s(queued, max_queued, finished_per_s)
        if finished_per_s <= 0:
            return first_s
        turn_s = self._last_at + 1 / finished_per_s - now
        delay_s = max(first_s, min(turn_s, _FAR_S))
        self._last_at = now + delay_s
        return delay_s


class QueueLength:
    """The number of waiting jobs of each tenant: counted in the catalog periodically, plus the jobs that this gateway
    admitted since."""

    def __init__(self, stale_after_s: float = 0.25, relaxed_s: float = 2.0) -> None:
        """A count is good for `relaxed_s` while the queue is less than half full, else for `stale_after_s`."""
        self._stale_after_s, self._relaxed_s = stale_after_s, relaxed_s
        self._counted_at = float("-inf")
        self._counted, self._since, self._arriving = Counter[str](), Counter[str](), Counter[str]()

    @property
    def length(self) -> int:
        return self._counted.total() + self._since.total() + self._arriving.total()

    def of(self, tenant: str) -> int:
        return self._counted[tenant] + self._since[tenant] + self._arriving[tenant]

    def tenants(self, tenant: str) -> int:
        """Return the number of tenants with waiting jobs, this one included. Live checks have no share."""
        waiting = {tenant, *self._counted, *self._since, *(name for name, jobs in self._arriving.items() if jobs)}
        return len(waiting - {CHECKS})

    def stale(self, now: float, limit: int, places: int = 1) -> bool:
        """Return whether to count again before the next admission; always when the next request would be refused."""
        good_for_s = self._relaxed_s if self.length * 2 < limit else self._stale_after_s
        return now - self._counted_at > good_for_s or self.length + places > limit

    def counted(self, queued: Mapping[str, int], now: float) -> None:
        self._counted, self._since, self._counted_at = Counter(queued), Counter(), now
        self._arriving = +self._arriving

    def arriving(self, tenant: str, jobs: int = 1) -> None:
        """Count the jobs of an admitted request; their rows are not written yet."""
        self._arriving[tenant] += jobs

    def arrived(self, tenant: str, jobs: int = 1) -> None:
        """Count the rows of an admitted request as written. If the request failed, the next count corrects the
        number."""
        self._arriving[tenant] -= jobs
        self._since[tenant] += jobs


class Admission:
    """The places of the queue, fair between tenants.

    While the queue has room, every tenant may fill it. Once the queue is full, a tenant below its equal share is still
    admitted: a flood of one tenant refuses no other. So at most 2 × `max_queued` jobs wait, and with one tenant exactly
    `max_queued`.
    """

    def __init__(self, max_queued: int, count: Callable[[], Awaitable[Mapping[str, int]]]) -> None:
        """count: returns the waiting jobs of each tenant."""
        self._max_queued, self._count = max_queued, count
        self._queue, self.rate = QueueLength(), FinishRate()
        self._sent_away: dict[str, RetryAfter] = {}
        self._counting, self._counts = asyncio.Lock(), 0

    async def admit(self, tenant: str, places: int, now: float) -> None:
        """Take places, until `arrived`. Raise OverloadedError when the queue is full. A request is never refused on an
        old count."""
        if self._queue.stale(now, self._max_queued, places):
            await self._count_again(now)
        self._check(tenant, places, now)
        self._queue.arriving(tenant, places)

    def arrived(self, tenant: str, places: int) -> None:
        self._queue.arrived(tenant, places)

    def above_share(self, tenant: str) -> bool:
        """Return whether the queue is full and the tenant has more of it than its share."""
        queue, limit = self._queue, self._max_queued
        return queue.length >= limit and queue.of(tenant) > limit // queue.tenants(tenant)

    async def _count_again(self, now: float) -> None:
        """Wait for a count that began after this call: one for all that came meanwhile, so that a flood of refused
        calls reads the catalog no more often than it answers."""
        begun = self._counts
        async with self._counting:
            if self._counts == begun:
                self._counts += 1
                self._queue.counted(await self._count(), now)

    def _check(self, tenant: str, places: int, now: float) -> None:
        """Raise OverloadedError with a retry delay when the queue lacks `places` for the images of a request."""
        queue, limit = self._queue, self._max_queued
        total, own, tenants = queue.length, queue.of(tenant), queue.tenants(tenant)
        share = max(limit // tenants, 1)
        if total + places <= limit or (own + places <= share and total + places <= 2 * limit):
            return
        if len(self._sent_away) > MOST_SENT_AWAY:
            self._sent_away.clear()
        away = self._sent_away.setdefault(tenant, RetryAfter())
        ahead, room = (own, share) if tenants > 1 else (total, limit)
        delay = away.delay_s(ahead + places - 1, room, self.rate.per_s(now) / tenants, now)
        asked = f", this request asks for {places}" if places > 1 else ""
        whose = f"; {own} of them are of this tenant, whose share is {share}" if tenants > 1 else ""
        message = f"{total} jobs are waiting and max_queued is {limit}{asked}{whose}; retry in {delay:.1f} s"
        raise OverloadedError(message, retry_after_s=delay)
