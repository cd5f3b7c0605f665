"""How long a client asks again, and after which pauses."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from shared.domain.errors import AfterimageError, OverloadedError, UnavailableError
from shared.runtime.rpc import AWAY

FIRST_DELAY_S, MAX_DELAY_S = 0.2, 10.0
REACHED_S = 5.0
"""A try that lasted for longer had reached the gateway, which it is given 2 s for (shared/runtime/rpc.py)."""


class Patience:
    """`limit_s` seconds of pauses, and of tries that reached nobody, from one break to the next.

    A gateway that says after each long try that something it needs is away was there, and yet it is the same break;
    one that was away before, or whose connection broke, has come back meanwhile.
    """

    def __init__(self, limit_s: float, dice: random.Random) -> None:
        self._limit_s, self._dice = limit_s, dice
        self._answered = False
        """Whether the last try was ended by the gateway's own answer."""
        self.renew()

    def renew(self) -> None:
        """It goes on: the next break, after the try that it ends, has all the time again."""
        self._left_s, self._next_s, self._broken = self._limit_s, FIRST_DELAY_S, False

    def pause_s(self, error: AfterimageError, lasted_s: float, explained_s: float = 0.0) -> float:
        """Return the seconds to the next try, or raise the error of the last one when the time is over.

        lasted_s: how long the last try took. explained_s: how long it took after that to find out why it failed.
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
        # the gateway's own delay, spread out so that everyone it sent away does not come back at once
        pause_s = max(pause_s, (error.retry_after_s or 0.0) * self._dice.uniform(1.0, 1.3))
        self._left_s -= pause_s
        return pause_s


def _worth_another_try(error: AfterimageError) -> bool:
    """RESOURCE_EXHAUSTED is, where the server says when: a message that is too large stays too large."""
    if isinstance(error, OverloadedError):
        return error.retry_after_s is not None
    return isinstance(error, UnavailableError)


def countdown(seconds: float) -> Callable[[], float]:
    """Return what says how many of these seconds are left."""
    now = asyncio.get_running_loop().time
    end = now() + seconds
    return lambda: max(end - now(), 0.0)
