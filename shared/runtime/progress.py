"""Progress of long work: bars on a terminal, else a line every 30 s with stage, share, rate and time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console

EVERY_S = 30.0
"""Seconds between two lines."""

Advance = Callable[[int], None]
"""Function that adds a number to the work done."""


class Bar(Protocol):
    """Function that begins a stage of long work."""

    def __call__(self, stage: str, total: int | None, done: int = 0) -> Advance:
        """Begin a stage. total: its amount of work, None when unknown; done: the part that an earlier run did."""
        ...


def say(line: str) -> None:
    """Print and flush at once, into files too, so that a long run does not seem to hang."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Remaining:
    """One stage that prints its progress every `every_s` seconds at most, and at its end if it lasted that long.

    done: the part of `total` that an earlier run did; it counts for the share and not for the rate. share: the finished
    share of the stage, if something other than `total` may end the stage.
    """

    def __init__(
        self,
        title: str,
        total: float,
        *,
        done: float = 0,
        share: float | None = None,
        clock: Callable[[], float] | None = None,
        say: Callable[[str], None] = say,
        every_s: float | None = None,
    ) -> None:
        self._title, self._total, self._say = title, total, say
        self._clock = clock or time.monotonic
        self._every_s = EVERY_S if every_s is None else every_s
        self._begun = self._said = self._clock()
        self._done = self._first = done
        self._first_share = self._share_of(done, share)

    def advance(self, count: float = 1) -> None:
        self.reached(self._done + count)

    def reached(self, done: float, *, share: float | None = None, note: str = "") -> None:
        """Set the finished work to `done` of `total`, and the share to `share`; `note` ends the printed line."""
        before, self._done = self._done, done
        behind = self._share_of(done, share)
        now = self._clock()
        ended = behind >= 1 and before < done and now - self._begun >= self._every_s
        if now - self._said >= self._every_s or ended:
            self._said = now
            self._say(self._line(now, behind, note))

    def _share_of(self, done: float, share: float | None) -> float:
        if share is not None:
            return share
        return done / self._total if self._total else 0.0

    def _line(self, now: float, share: float, note: str) -> str:
        seconds, gained = now - self._begun, share - self._first_share
        rate = (self._done - self._first) / seconds if seconds > 0 else 0.0
        left = str(timedelta(seconds=round(seconds / gained * max(1 - share, 0)))) if gained > 0 else "unknown time"
        said = (
            f"{self._title}: {self._done:,.0f} of {self._total:,.0f} ({min(share, 1):.1%}), {_per(rate)}, {left} left"
        )
        return f"{said}; {note}" if note else said


def _per(rate: float) -> str:
    return f"{rate:,.3g} a second" if rate >= 1 else f"{60 * rate:.3g} a minute"


@contextmanager
def shown(console: Console | None = None) -> Iterator[Bar]:
    """Show bars on `console` (default: stdout) if it is a terminal, else print lines."""
    from rich.console import Console as RichConsole

    console = console or RichConsole(soft_wrap=True)
    if not console.is_interactive:
        yield _lines(lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True))
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TimeElapsedColumn, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        unknown: list[TaskID] = []

        def begin(stage: str, total: int | None, done: int = 0) -> Advance:
            while unknown:  # a stage of unknown length ends where the next one begins
                progress.update(unknown.pop(), total=1, completed=1)
            task = progress.add_task(stage, total=total, completed=done, visible=total != 0)
            if total is None:
                unknown.append(task)
            return lambda count: progress.advance(task, count)

        yield begin


def _lines(say: Callable[[str], None]) -> Bar:
    def begin(stage: str, total: int | None, done: int = 0) -> Advance:
        if total is None:
            say(f"{stage} …")
        if not total:
            return lambda count: None
        return Remaining(stage, total, done=done, say=say).advance

    return begin
