"""Whether another job may wait, and when to come back if not (design §8, Accept)."""

from __future__ import annotations

from collections import deque

from shared.domain.errors import OverloadedError, StorageFullError

_MIN_DELAY_S, _MAX_DELAY_S, _UNKNOWN_DELAY_S = 0.1, 60.0, 1.0
_FAR_S = 10.0
"""Places further ahead than this are not given out: who was sent away may have gone for good."""


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
    """Seconds until a place is free if jobs keep finishing as they did; 1 s when nothing is known, never above 60."""
    if finished_per_s <= 0:
        return _UNKNOWN_DELAY_S
    ahead = max(queued - max_queued + 1, 1)
    return min(max(ahead / finished_per_s, _MIN_DELAY_S), _MAX_DELAY_S)


class RetryAfter:
    """Those who were refused, each told to come back when a place is free behind those who were refused before.

    Told the same short delay, hundreds would come back together again and again for one place, and refusing them would
    cost more than drawing.
    """

    def __init__(self) -> None:
        self._last_at = float("-inf")

    def delay_s(self, queued: int, max_queued: int, finished_per_s: float, now: float) -> float:
        """Seconds until this one's turn."""
        first_s = retry_delay_s(queued, max_queued, finished_per_s)
        if finished_per_s <= 0:
            return first_s
        turn_s = self._last_at + 1 / finished_per_s - now
        delay_s = max(first_s, min(turn_s, _FAR_S))
        self._last_at = now + delay_s
        return delay_s


def check_queue(queued: int, max_queued: int, finished_per_s: float, sent_away: RetryAfter, now: float) -> None:
    """Raises OverloadedError with a retry delay when the queue is full."""
    if queued >= max_queued:
        delay = sent_away.delay_s(queued, max_queued, finished_per_s, now)
        message = f"{queued} jobs are waiting and max_queued is {max_queued}; come back in {delay:.1f} s"
        raise OverloadedError(message, retry_after_s=delay)


def check_disk(free_bytes: int, min_free_bytes: int) -> None:
    """Raises StorageFullError before a job is accepted that could not be stored."""
    if free_bytes < min_free_bytes:
        raise StorageFullError(
            f"the data directory's disk has {free_bytes >> 20} MiB left and min_free_bytes asks for "
            f"{min_free_bytes >> 20} MiB; free some space",
            retry_after_s=30.0,
        )


class QueueLength:
    """Jobs waiting: counted now and then, and kept up with what this gateway let in since."""

    def __init__(self, stale_after_s: float = 0.25, relaxed_s: float = 2.0) -> None:
        """A count is good for `relaxed_s` while the queue is less than half full, for `stale_after_s` else."""
        self._stale_after_s, self._relaxed_s = stale_after_s, relaxed_s
        self._counted_at = float("-inf")
        self._counted = self._since = self._arriving = 0

    @property
    def length(self) -> int:
        return self._counted + self._since + self._arriving

    def stale(self, now: float, limit: int) -> bool:
        """Whether to count again before the next one is let in; always when it would be refused."""
        good_for_s = self._relaxed_s if self.length * 2 < limit else self._stale_after_s
        return now - self._counted_at > good_for_s or self.length >= limit

    def counted(self, queued: int, now: float) -> None:
        self._counted, self._since, self._counted_at = queued, 0, now

    def arriving(self) -> None:
        """A request was admitted; its row is not written yet."""
        self._arriving += 1

    def arrived(self) -> None:
        """Its row is written (or it came to nothing: the next count puts that right)."""
        self._arriving -= 1
        self._since += 1
