"""Admission: refuse a job when the queue or the disk is full, with a delay after which to retry (docs/architecture.md,
Delivery rules)."""

from __future__ import annotations

from collections import deque

from shared.domain.errors import OverloadedError, StorageFullError

_MIN_DELAY_S, _MAX_DELAY_S, _UNKNOWN_DELAY_S = 0.1, 60.0, 1.0
_FAR_S = 10.0
"""Longest delay in seconds up to which places are reserved for refused clients, because a refused client may never come
back."""


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


def check_queue(
    queued: int, max_queued: int, finished_per_s: float, sent_away: RetryAfter, now: float, places: int = 1
) -> None:
    """Raise OverloadedError with a retry delay when the queue lacks `places` for the images of a request."""
    if queued + places > max_queued:
        delay = sent_away.delay_s(queued + places - 1, max_queued, finished_per_s, now)
        asked = f", this request asks for {places}" if places > 1 else ""
        message = f"{queued} jobs are waiting and max_queued is {max_queued}{asked}; retry in {delay:.1f} s"
        raise OverloadedError(message, retry_after_s=delay)


def check_disk(free_bytes: int, min_free_bytes: int) -> None:
    """Raise StorageFullError when the disk has no room to store another job's results."""
    if free_bytes < min_free_bytes:
        raise StorageFullError(
            f"the data directory's disk has {free_bytes >> 20} MiB left; min_free_bytes needs "
            f"{min_free_bytes >> 20} MiB; free some space",
            retry_after_s=30.0,
        )


class QueueLength:
    """The number of waiting jobs: counted in the catalog periodically, plus the jobs that this gateway admitted
    since."""

    def __init__(self, stale_after_s: float = 0.25, relaxed_s: float = 2.0) -> None:
        """A count is good for `relaxed_s` while the queue is less than half full, else for `stale_after_s`."""
        self._stale_after_s, self._relaxed_s = stale_after_s, relaxed_s
        self._counted_at = float("-inf")
        self._counted = self._since = self._arriving = 0

    @property
    def length(self) -> int:
        return self._counted + self._since + self._arriving

    def stale(self, now: float, limit: int, places: int = 1) -> bool:
        """Return whether to count again before the next admission; always when the next request would be refused."""
        good_for_s = self._relaxed_s if self.length * 2 < limit else self._stale_after_s
        return now - self._counted_at > good_for_s or self.length + places > limit

    def counted(self, queued: int, now: float) -> None:
        self._counted, self._since, self._counted_at = queued, 0, now

    def arriving(self, jobs: int = 1) -> None:
        """Count the jobs of an admitted request; their rows are not written yet."""
        self._arriving += jobs

    def arrived(self, jobs: int = 1) -> None:
        """Count the rows of an admitted request as written. If the request failed, the next count corrects the
        number."""
        self._arriving -= jobs
        self._since += jobs
