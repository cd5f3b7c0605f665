"""Token buckets of API keys, counted by each process for itself."""

from __future__ import annotations

from collections.abc import Collection

from shared.domain.errors import RateLimitError
from shared.domain.identity import ApiKey


class Buckets:
    """One token bucket per key with a rate: a call takes a token, and tokens come back at the key's rate.

    A bucket is one number, the time at which it is full again (the generic cell rate algorithm).
    """

    def __init__(self) -> None:
        self._full_at: dict[str, float] = {}

    def take(self, key: ApiKey, now: float) -> None:
        """Take one token. Raises RateLimitError, with the seconds until there is one. now: a monotonic time in s."""
        if (rate := key.rate) is None:
            return
        full_at = max(self._full_at.get(key.id, now), now)
        wait_s = full_at - now - (rate.burst - 1) / rate.per_s
        if wait_s > 1e-9:
            said = f"this key sends more than its rate of {rate}; retry in {wait_s:.1f} s"
            raise RateLimitError(said, retry_after_s=wait_s)
        self._full_at[key.id] = full_at + 1 / rate.per_s

    def keep(self, live: Collection[str]) -> None:
        """Delete the buckets of all other keys."""
        self._full_at = {key_id: at for key_id, at in self._full_at.items() if key_id in live}
