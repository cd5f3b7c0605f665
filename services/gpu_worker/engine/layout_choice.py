"""Choice of a batch's layout: one batch per size, or one of all sizes, by expected times and steps that ran, pure."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from shared.models.step_regression import Mix

PRIOR = 1.1
"""Seconds of one batch, as a multiple of those of groups, that are assumed without a profile: groups, until trials
measure that one batch is faster."""
ERROR = 0.25
"""Relative error that is assumed without a profile."""
TRIED_EVERY = 32
"""Steps between two trials, at least."""
LEARNING = 0.1
"""Share of a new trial in the correction of all mixes, a moving average of logarithms of measured / expected."""
MOST = math.log(2)
"""Largest correction that one trial can suggest: a step may be slow because of other work."""
ENOUGH = 3
"""Trials from which a mix is expected to take what its own trials took."""
KEPT_TRIALS = 8
KEPT_MIXES = 512

Ratio = Callable[[Mix], float | None]
"""Seconds of a mix in one batch, as a multiple of its seconds in groups; None: unknown."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One step: its mix, whether all sizes were in one batch, and its seconds."""

    mix: Mix
    together: bool
    seconds: float


class LayoutChoice:
    """The faster layout of each mix. Not thread-safe, like the engine.

    Only the ratio of the two times counts, so a machine that is slower as a whole needs no correction. The ratio comes
    from the profile. A trial runs one step in the other layout, where the two are close: its seconds and those of the
    neighbouring steps of the same mix give a measured ratio. Such ratios correct all mixes, and after `ENOUGH` of them
    the mix itself has a median of its own. The first step in one batch gives none: it compiles kernels, which takes
    many times as long as a step.
    """

    def __init__(self, ratio: Ratio | None = None, error: float = ERROR) -> None:
        """error: relative error of `ratio`; a layout that is expected to lose by more is not tried."""
        self._ratio, self._close = ratio, math.log1p(error)
        self._correction = 0.0
        self._measured: OrderedDict[Mix, deque[float]] = OrderedDict()
        """Logarithms of measured ratios."""
        self._last: Ran | None = None
        self._warm = False
        """One batch ran a step here. Groups did in the warm-up of the model."""
        self._since_trial = 0

    def together(self, mix: Mix) -> bool:
        """Return whether the next step of this mix runs all sizes in one batch."""
        expected = self._expected(mix)
        faster = expected < 0
        last = self._last
        due = last is not None and last.mix == mix and last.together == faster and self._since_trial >= TRIED_EVERY
        return not faster if due and abs(expected) <= self._close else faster

    def took(self, ran: Ran) -> None:
        """Record a step of several sizes; a neighbour of the same mix in the other layout makes a measured ratio."""
        last, self._last = self._last, ran
        self._since_trial += 1
        if ran.together and not self._warm:
            self._warm = True
            self._last, self._since_trial = None, 0
            return
        if last is None or last.mix != ran.mix or last.together == ran.together or min(last.seconds, ran.seconds) <= 0:
            return
        self._since_trial = 0
        measured = math.log(ran.seconds / last.seconds) * (1 if ran.together else -1)
        surprise = measured - self._predicted(ran.mix) - self._correction
        self._correction += LEARNING * max(min(surprise, MOST), -MOST)
        self._measured.setdefault(ran.mix, deque(maxlen=KEPT_TRIALS)).append(measured)
        self._measured.move_to_end(ran.mix)
        if len(self._measured) > KEPT_MIXES:
            self._measured.popitem(last=False)

    def _expected(self, mix: Mix) -> float:
        """Return the logarithm of the expected ratio: below 0, one batch is faster."""
        measured = self._measured.get(mix)
        if measured is not None and len(measured) >= ENOUGH:
            return median(measured)
        return self._predicted(mix) + self._correction

    def _predicted(self, mix: Mix) -> float:
        ratio = self._ratio(mix) if self._ratio is not None else None
        return math.log(PRIOR if ratio is None else ratio)
