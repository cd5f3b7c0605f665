"""Quality of reused images against the same requests from noise: prompt fidelity, look, variety and copying.

One definition for profiles, tables, plans, checks and benches. Each measure is a pure function of images or of their
embeddings, and each has a bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

import numpy as np
import numpy.typing as npt

from shared.models.confidence import mean_bounds, ratio_bounds, share_bounds

Pixels = npt.NDArray[np.uint8]
"""An image, (height, width, 3), RGB, or a clip of such frames, (frames, height, width, 3)."""
LOOKS = 4
"""Most frames of a clip that are measured, evenly spaced."""


@dataclass(frozen=True, slots=True)
class Measures:
    """Measures of one image; None: not measured."""

    score: float | None = None
    """CLIP score: cosine of image and prompt, not below 0."""
    shown: bool | None = None
    """True if the image shows the attributes asked for; None where no judge knows."""
    contrast: float | None = None
    """Standard deviation of the luminance, 0–255."""
    saturation: float | None = None
    """Mean saturation (HSV), 0–255."""
    sharpness: float | None = None
    """Mean difference between the luminances of neighbouring pixels, 0–255."""
    spread: float | None = None
    """Mean distance between the images of the same prompt at several seeds (`spread`)."""
    likeness: float | None = None
    """Likeness to the source image (`likeness`)."""


UNMEASURED = Measures()


@dataclass(frozen=True, slots=True)
class Measured:
    """One measure over pairs of images."""

    value: float
    bound: float | None
    """95 % one-sided confidence bound: the upper one for copying, the lower one for all others. None: too few pairs."""
    count: int
    """Pairs; for variety, prompts with several seeds."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Quality of reused images against the same requests from noise; None: not measured."""

    fidelity: Measured | None = None
    """CLIP scores, as a share of those from noise."""
    attributes: Measured | None = None
    """Images that show what was asked for, as a share of those from noise."""
    contrast: Measured | None = None
    saturation: Measured | None = None
    sharpness: Measured | None = None
    variety: Measured | None = None
    """Mean distance between the images of a prompt at several seeds, as a share of that from noise."""
    copying: Measured | None = None
    """Likeness to the source image, less the likeness of the image from noise to the same source."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Least value of a measure, or its largest where `at_most`; and the reason."""

    limit: float
    reason: str
    at_most: bool = False

    def holds(self, measured: Measured | None) -> bool:
        """Return whether the confidence bound keeps the limit; what was not measured does not hold."""
        if measured is None or measured.bound is None:
            return False
        return measured.bound <= self.limit if self.at_most else measured.bound >= self.limit


_LOOK = "Neither CLIP nor the judge sees pale or soft images; today's hits keep .90 of the contrast (ADR 9)."
BOUNDS: Mapping[str, Bound] = {
    "fidelity": Bound(0.95, "The α of the K table in force replaces this value; .95 is the default α (ADR 9)."),
    "attributes": Bound(
        0.95, "The same α: an image that lacks what was asked for is no answer, however good it looks."
    ),
    "contrast": Bound(0.9, _LOOK),
    "saturation": Bound(0.9, _LOOK),
    "sharpness": Bound(0.9, _LOOK),
    "variety": Bound(0.9, "Another seed asks for another image. Counts for re-rolls and across users, not for edits."),
    "copying": Bound(0.05, "The source was not asked for. Counts for unrelated prompts; an edit may keep it.", True),
}
"""Default bound of each measure of Quality."""


def frames_of(pixels: Pixels) -> list[Pixels]:
    """Return an image as the only frame; of a clip LOOKS frames, evenly spaced from the first to the last."""
    if pixels.ndim == 3:
        return [pixels]
    return [pixels[at] for at in np.linspace(0, len(pixels) - 1, min(LOOKS, len(pixels))).round().astype(int)]


def look(pixels: Pixels) -> Measures:
    """Return contrast, saturation and sharpness, which neither CLIP nor the judge measures (ADR 9); of a clip the means
    over its frames."""
    found = [_look(frame) for frame in frames_of(pixels)]
    contrast, saturation, sharpness = (fmean(values) for values in zip(*found, strict=True))
    return Measures(contrast=contrast, saturation=saturation, sharpness=sharpness)


def _look(pixels: Pixels) -> tuple[float, float, float]:
    from PIL import Image  # retriever and match predictor read tables in images without Pillow

    image = Image.fromarray(pixels)
    luminance = np.asarray(image.convert("L"), np.float64)
    saturation = np.asarray(image.convert("HSV"), np.float64)[..., 1]
    steps = [np.abs(np.diff(luminance, axis=axis)).mean() for axis in (0, 1)]
    return float(luminance.std()), float(saturation.mean()), float(sum(steps) / 2)


def spread(vectors: Sequence[npt.NDArray[np.floating]]) -> float:
    """Return the mean cosine distance (1 − cosine) of all pairs of image embeddings; one embedding per image.

    Embeddings and not pixels, because variety is another image and not the same image moved by a few pixels. They also
    compare images of any size, and each service has the encoder. Equal images have 0. ValueError below two vectors.
    """
    if len(vectors) < 2:
        raise ValueError(f"vectors must hold at least two embeddings (got {len(vectors)})")
    return fmean(1.0 - _cosine(one, other) for one, other in combinations(vectors, 2))


def likeness(pixels: Pixels, source: Pixels) -> float:
    """Return the cosine of two images or clips of one size, −1…1, each frame less its own mean of every channel.

    An image is as like its source as its pixels follow those of the source; brightness and colour cast do not count.
    Embeddings would not do: they hardly see a composition that stays while the object changes. A flat image is like
    no other: 0.
    """
    both = (pixels.astype(np.float64), source)
    return _cosine(*(frames - frames.mean(axis=(-3, -2), keepdims=True) for frames in both))


def compare(reused: Sequence[Measures], from_noise: Sequence[Measures]) -> Quality:
    """Return the quality of reused images; `from_noise` holds the same requests from noise, in the same order.

    A measure counts the pairs that have it on both sides. It is None where no pair has.
    """

    def both(name: str) -> tuple[list[float], list[float]]:
        values = [(getattr(one, name), getattr(other, name)) for one, other in zip(reused, from_noise, strict=True)]
        known = [(value, against) for value, against in values if value is not None and against is not None]
        return [float(value) for value, _ in known], [float(against) for _, against in known]

    def ratio(name: str) -> Measured | None:
        values, against = both(name)
        return (
            _measured(fmean(values) / fmean(against), ratio_bounds(values, against)[0], values)
            if any(against)
            else None
        )

    shown, shown_from_noise = ([bool(value) for value in side] for side in both("shown"))
    copied = [value - against for value, against in zip(*both("likeness"), strict=True)]
    return Quality(
        fidelity=ratio("score"),
        attributes=_measured(sum(shown) / sum(shown_from_noise), share_bounds(shown, shown_from_noise)[0], shown)
        if any(shown_from_noise)
        else None,
        contrast=ratio("contrast"),
        saturation=ratio("saturation"),
        sharpness=ratio("sharpness"),
        variety=ratio("spread"),
        copying=_measured(fmean(copied), mean_bounds(copied)[1], copied) if copied else None,
    )


def _measured(value: float, bound: float, rows: Sequence[object]) -> Measured:
    return Measured(value, bound if math.isfinite(bound) else None, len(rows))


def _cosine(one: npt.NDArray[np.floating], other: npt.NDArray[np.floating]) -> float:
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(np.vdot(one, other)) / lengths if lengths else 0.0
