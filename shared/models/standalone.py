"""Seconds that a request takes alone, from the measured latency of its model (PatchedServe §6.2: STANDALONE)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.domain.types import Size
from shared.models.card import ModelCard
from shared.models.latency import FILE


@dataclass(frozen=True)
class Line:
    """Seconds of a forward pass as `fixed_s + per_pixel_s · pixels`, all passes counted: the cold start."""

    fixed_s: float = 0.0
    per_pixel_s: float = 1e-9
    """The default stands for an unknown model; the first step corrects its scale."""


def line_through(step_s: Mapping[int, float], pixels_each: int) -> Line:
    """Return the least-squares line through seconds by requests, each of `pixels_each` pixels in all its passes."""
    if not step_s:
        return Line()
    n, mean_x, mean_y = len(step_s), sum(step_s) / len(step_s), sum(step_s.values()) / len(step_s)
    spread = sum((x - mean_x) ** 2 for x in step_s)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in step_s.items()) / spread if n > 1 else 0.0
    if not 0 < slope < mean_y / mean_x:  # one measurement, or a slope that leaves no fixed part
        return Line(0.0, mean_y / mean_x / pixels_each)
    return Line(mean_y - slope * mean_x, slope / pixels_each)


def read_shipped(card: ModelCard) -> dict[str, Any] | None:
    """Read the `latency.json` beside the weights; None if there is none, or an unreadable one."""
    if card.is_noop:
        step_s, row_s = (float(card.noop_options.get(key, 0)) / 1000 for key in ("step_ms", "row_ms"))
        return {"step_s": {str(rows): step_s + rows * row_s for rows in (1, 2)}, "decode_s": 0.0}
    try:
        found = json.loads((card.folder / FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def line_of(card: ModelCard, latency: dict[str, Any] | None) -> Line:
    """Return the line through a measured latency, which is of the card's default size, length and guidance."""
    if latency is None:
        return Line()
    try:
        step_s = {int(rows): float(seconds) for rows, seconds in latency["step_s"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return Line()
    usable = {rows: seconds for rows, seconds in step_s.items() if rows > 0 and seconds > 0}
    return line_through(usable, _passes(card.default_guidance) * pixels_of(card))


def decode_of(latency: dict[str, Any] | None) -> float:
    """Return the seconds of decoding an image of the card's default size; 0 if unknown."""
    try:
        return max(float((latency or {}).get("decode_s", 0.0)), 0.0)
    except (ValueError, TypeError):
        return 0.0


def pixels_of(card: ModelCard) -> int:
    """Return the pixels of an image or clip of the card's default size and length."""
    return card.default_size.width * card.default_size.height * card.frames.default


@dataclass(frozen=True)
class Standalone:
    """Step times of one model, as a latency profile states them."""

    card: ModelCard
    line: Line
    decode_s: float
    """Seconds of decoding an image of the default size."""
    known: bool
    """False: there is no profile, so only a worker's report gives a scale."""
    here: bool = False
    """The profile was measured by this deployment, so reports of workers do not rescale it."""

    @classmethod
    def of(cls, card: ModelCard, measured: dict[str, Any] | None) -> Standalone:
        """measured: the latency in the catalog; None: the one beside the weights counts."""
        latency = read_shipped(card) if measured is None else measured
        line = line_of(card, latency)
        return cls(card, line, decode_of(latency), known=line != Line(), here=measured is not None)

    def seconds(self, size: Size, frames: int, guidance: float, steps: int, one_row_s: float = 0.0) -> float:
        """Return the seconds of `steps` steps and of decoding. one_row_s: seconds of a step of one default request by
        the workers' reports; 0: none. Without profile and report, 0: unknown."""
        scale = one_row_s / self.step_s(1) if one_row_s > 0 and not self.here else float(self.known)
        pixels = size.width * size.height * frames
        step_s = self.line.fixed_s + self.line.per_pixel_s * pixels * _passes(guidance)
        return scale * (steps * step_s + self.decode_s * pixels / pixels_of(self.card))

    def step_s(self, rows: int) -> float:
        """Return the seconds of a step of this many default requests, by the profile."""
        each = _passes(self.card.default_guidance) * pixels_of(self.card)
        return self.line.fixed_s + self.line.per_pixel_s * rows * each


def _passes(guidance: float) -> int:
    return 2 if guidance > 1 else 1
