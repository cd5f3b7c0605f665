"""Prediction of one model's step times for any mix of sizes: from its profile, corrected by the steps that ran."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from statistics import median

from shared.models.standalone import Line
from shared.models.step_regression import Mix, StepRegression, pixels

KEPT_MIXES = 512
KEPT_STEPS = 8
"""Measured seconds kept of each mix; their median counts."""
ENOUGH = 3
"""Measured steps from which a mix is predicted by its own median."""
LEARNING = 0.1
"""Share of a new step in the model's correction, a moving average of logarithms of measured / predicted."""
ERROR = 0.1
"""Relative error that is assumed without a regression."""


class StepSeconds:
    """Predicted seconds of one step of a model. Not thread-safe, like the engine.

    A mix that ran often enough is predicted by the median of its last steps. Any other mix is predicted by the
    regression of `afterimage profile --mixes`, or by the line of the card's profile where there is no regression or the
    mix lies outside of it; both are multiplied by the correction that the model's steps so far suggest.
    """

    def __init__(
        self,
        line: Line | None = None,
        *,
        decode_pixel_s: float = 0.0,
        together: bool = False,
        regression: StepRegression | None = None,
    ) -> None:
        """decode_pixel_s: seconds of decoding one pixel. together: all sizes run in one forward pass, as with
        layout=patches; otherwise each size has its own."""
        self._line, self._together, self._regression = line or Line(), together, regression
        self._decode_pixel_s = decode_pixel_s
        self._measured: OrderedDict[Mix, deque[float]] = OrderedDict()
        self._correction: float | None = None
        self._known: dict[Mix, float] = {}
        """Predictions by the regression or the line, before the correction."""

    @property
    def error(self) -> float:
        """Return the relative error of a prediction, 95th percentile."""
        return ERROR if self._regression is None else self._regression.error

    def of(self, mix: Mix) -> float:
        """Return the seconds of a step of this mix; 0 for an empty one."""
        if not mix:
            return 0.0
        measured = self._measured.get(mix)
        if measured is not None and len(measured) >= ENOUGH:
            return median(measured)
        return self._from_profile(mix) * math.exp(self._correction or 0.0)

    def decode_s(self, image_pixels: int) -> float:
        """Return the seconds of decoding an image or clip of this many pixels."""
        return self._decode_pixel_s * image_pixels

    def took(self, mix: Mix, seconds: float) -> None:
        """Record the seconds of a step that ran."""
        if seconds <= 0 or not mix:
            return
        ratio = math.log(seconds / self._from_profile(mix))
        before = self._correction
        self._correction = ratio if before is None else before + LEARNING * (ratio - before)
        self._measured.setdefault(mix, deque(maxlen=KEPT_STEPS)).append(seconds)
        self._measured.move_to_end(mix)
        if len(self._measured) > KEPT_MIXES:
            self._measured.popitem(last=False)

    def _from_profile(self, mix: Mix) -> float:
        if (found := self._known.get(mix)) is None:
            if len(self._known) >= KEPT_MIXES:
                self._known.clear()
            found = self._known[mix] = self._computed(mix)
        return found

    def _computed(self, mix: Mix) -> float:
        if self._regression is not None and (found := self._regression.seconds(mix)) is not None:
            return found
        batches = [mix] if self._together else [(one,) for one in mix]
        return sum(self._line.fixed_s + self._line.per_pixel_s * pixels(batch) for batch in batches)
