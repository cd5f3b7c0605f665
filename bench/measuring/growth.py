"""Growth of a figure over a size: a line or a logarithm, whichever fits the measurements best."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Form = Literal["line", "logarithm"]
FORMS: dict[Form, Callable[[float], float]] = {"line": float, "logarithm": math.log10}


@dataclass(frozen=True, slots=True)
class Growth:
    """`base + slope · n` (a line) or `base + slope · log10 n` (a logarithm)."""

    form: Form
    base: float
    slope: float

    def at(self, size: float) -> float:
        return self.base + self.slope * FORMS[self.form](size)

    def __str__(self) -> str:
        if self.form == "line":
            return f"{short(self.base)} + {short(1000 * self.slope)} per 1,000"
        return f"{short(self.base)} + {short(self.slope)} per factor of 10"


def short(value: float) -> str:
    """Return a figure with three digits, or with all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def fitted(points: Sequence[tuple[float, float]]) -> Growth:
    """Fit (size, value) pairs, by least squares of the relative errors; with two pairs, a line."""
    forms: tuple[Form, ...] = ("line", "logarithm") if len(points) > 2 else ("line",)
    fits = [_fit(form, points) for form in forms]
    return min(fits, key=lambda fit: sum((fit.at(size) / (value or 1.0) - 1) ** 2 for size, value in points))


def _fit(form: Form, points: Sequence[tuple[float, float]]) -> Growth:
    values = np.array([value for _, value in points])
    weights = 1 / np.where(values == 0, 1.0, np.abs(values))
    slope, base = np.polyfit([FORMS[form](size) for size, _ in points], values, 1, w=weights)
    return Growth(form, float(base), float(slope))
