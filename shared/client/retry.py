"""The retries of a client: their total time, and the pauses between them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from shared.domain.errors import AfterimageError, OverloadedError, UnavailableError
from shared.runtime.rpc import AWAY

FIRST_DELAY_S, MAX_DELAY_S = 0.2, 10.0
REACHED_S = 5.0
"""Seconds after which a try must have reached the gateway: connecting takes at most 2 s (shared/runtime/rpc.py)."""


class Patience:
    """The time left for retries: `limit_s` seconds for each interruption.

    Pauses count, and so do tries that reach no gateway. Long tries that the gateway itself ends with an error belong to
    the same interruption. A long try after a lost connection begins a new one: the gateway had come back in between.
    """

    def __init__(self, limit_s: float, dice: random.Random) -> None:
        self._limit_s, self._dice = limit_s, dice
        self._answered = False
        """The gateway's own reply ended the last try."""
        self.renew()

    def renew(self) -> None:
        """Give the next interruption the whole time again, because the call makes progress."""
        self._left_s, self._next_s, self._broken = self._limit_s, FIRST_DELAY_S, False

    def pause_s(self, error: AfterimageError, lasted_s: float, explained_s: float = 0.0) -> float:
        """Return the seconds to the next try, or raise the error of the last one when the time is over.

        lasted_s: seconds of the last try. explained_s: seconds spent afterwards to find the reason of its failure.
        """
        if not _worth_another_try(error):
            raise error
        before, self._answered = self._answered, error.outside != AWAY
        if lasted_s > REACHED_S:
            if not (before and self._answered):
                self.renew()
        elif self._broken:
            self._left_s -= lasted_s + explained_s
        self._broken = True
        if self._left_s <= 0:
            raise error
        pause_s = min(self._next_s * self._dice.uniform(0.5, 1.5), max(self._left_s, 0.01))
        self._next_s = min(2 * self._next_s, MAX_DELAY_S)
        # the gateway's own delay, with jitter, so that refused clients do not return all at once
        pause_s = max(pause_s, (error.retry_after_s or 0.0) * self._dice.uniform(1.0, 1.3))
        self._left_s -= pause_s
        return pause_s


def _worth_another_try(error: AfterimageError) -> bool:
    """Return whether a retry may help. RESOURCE_EXHAUSTED needs a delay: without one a message was too large."""
    if isinstance(error, OverloadedError):
        return error.retry_after_s is not None
    return isinstance(error, UnavailableError)


def countdown(seconds: float) -> Callable[[], float]:
    """Return a function that returns how many of these seconds are left."""
    now = asyncio.get_running_loop().time
    end = now() + seconds
    return lambda: max(end - now(), 0.0)
