"""How far a long benchmark is, and how long it still takes, a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY_S = 15.0


def _say(line: str) -> None:
    """At once, into a file too: hours of silence look like a run that hangs."""
    print(line, flush=True)


class Remaining:
    """Counts from its making on; `clock`: monotonic seconds."""

    def __init__(
        self, title: str, total: int, *, clock: Callable[[], float] = time.monotonic, say: Callable[[str], None] = _say
    ) -> None:
        self._title, self._total, self._clock, self._say = title, total, clock, say
        self._begun = self._said = clock()
        self._done = 0

    def advance(self, count: int = 1) -> None:
        self._done += count
        now = self._clock()
        if now - self._said >= EVERY_S or self._done >= self._total:
            self._said = now
            self._say(f"{self._title}: {self._done} of {self._total}, {self.left_s(now):.0f} s left")

    def left_s(self, now: float) -> float:
        """At the pace so far."""
        return (now - self._begun) / self._done * (self._total - self._done) if self._done else float("inf")
