"""Token buckets of API keys and tenants, counted by each process for itself."""

from __future__ import annotations

from shared.domain.errors import RateLimitError
from shared.domain.identity import Rate


class Buckets:
    """One token bucket per name: a call takes a token, and tokens come back at the name's rate.

    A bucket is one number, the time at which it is full again (the generic cell rate algorithm).
    """

    def __init__(self, whose: str) -> None:
        """whose: what the names are of, for the message."""
        self._whose, self._full_at = whose, dict[str, float]()

    def check(self, name: str, rate: Rate | None, now: float) -> None:
        """Raise RateLimitError, with the seconds until there is a token; now: a monotonic time in s."""
        if rate is None:
            return
        wait_s = self._full_at.get(name, now) - now - (rate.burst - 1) / rate.per_s
        if wait_s > 1e-9:
            said = f"this {self._whose} sends more than its rate of {rate}; retry in {wait_s:.1f} s"
            raise RateLimitError(said, retry_after_s=wait_s)

    def take(self, name: str, rate: Rate | None, now: float) -> None:
        """Take one token, after `check`; none where there is no rate."""
        if rate is not None:
            self._full_at[name] = max(self._full_at.get(name, now), now) + 1 / rate.per_s

    def use(self, name: str, rate: Rate, now: float) -> None:
        """Take one token, or raise RateLimitError; forget the buckets that are full again."""
        self.tidy(now)
        self.check(name, rate, now)
        self.take(name, rate, now)

    def tidy(self, now: float) -> None:
        """Forget the buckets that are full again."""
        self._full_at = {name: at for name, at in self._full_at.items() if at > now}
