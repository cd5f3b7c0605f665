"""Token buckets of API keys and tenants, counted by each process for itself."""

from __future__ import annotations

from collections.abc import Container

from shared.domain.errors import RateLimitError
from shared.domain.identity import Rate


class Buckets:
    """One token bucket per name: a call takes a token, and tokens come back at the name's rate.

    A bucket is one number, the time at which it is full again (the generic cell rate algorithm).
    """

    def __init__(self, whose: str) -> None:
        """whose: what the names are of, for the message."""
        self._whose, self._full_at = whose, dict[str, float]()

    def take(self, name: str, rate: Rate | None, now: float) -> None:
        """Take one token; none where there is no rate. Raises RateLimitError, with the seconds until there is one.

        now: a monotonic time in s.
        """
        if rate is None:
            return
        full_at = max(self._full_at.get(name, now), now)
        wait_s = full_at - now - (rate.burst - 1) / rate.per_s
        if wait_s > 1e-9:
            said = f"this {self._whose} sends more than its rate of {rate}; retry in {wait_s:.1f} s"
            raise RateLimitError(said, retry_after_s=wait_s)
        self._full_at[name] = full_at + 1 / rate.per_s

    def keep(self, names: Container[str]) -> None:
        """Delete all other buckets."""
        self._full_at = {name: at for name, at in self._full_at.items() if name in names}
