"""A circuit breaker: a service that keeps failing is not called for a while, so that requests do not wait for it."""

from __future__ import annotations


class Breaker:
    """A circuit breaker that opens after `failures` in a row, for `first_s` doubling to `max_s`; then one probe at a
    time passes."""

    def __init__(self, *, failures: int = 3, first_s: float = 1.0, max_s: float = 30.0) -> None:
        self._limit, self._first_s, self._max_s = failures, first_s, max_s
        self._failed = 0
        self._open_until = 0.0
        self._wait_s = first_s

    @property
    def open(self) -> bool:
        return self._failed >= self._limit

    def allows(self, now: float) -> bool:
        """Return whether to call now. A probe blocks further calls until its outcome is known."""
        if not self.open:
            return True
        if now < self._open_until:
            return False
        self._open_until = now + self._wait_s
        return True

    def succeeded(self) -> None:
        self._failed, self._wait_s = 0, self._first_s

    def failed(self, now: float) -> None:
        self._failed += 1
        if self._failed > self._limit:
            self._wait_s = min(self._wait_s * 2, self._max_s)
        if self.open:
            self._open_until = now + self._wait_s
