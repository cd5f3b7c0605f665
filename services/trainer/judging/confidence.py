"""Confidence thresholds of the judges, calibrated on real renders that passed through the autoencoder, and on blurs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from services.trainer.judging.classifier import Reader
from services.trainer.judging.scenes import balanced_scenes
from services.trainer.judging.templates import Match, blurred, match
from services.trainer.rendering.renderer import SIZES, Renderer
from shared.models.scenes import Scene

Pictures = npt.NDArray[np.uint8]
"""(B, height, width, 3)."""
Pass = Callable[[Pictures], Pictures]
"""Encodes and decodes images with an autoencoder."""

UNLIKE = 0.03
"""Share of a style's real images whose margin may be below the threshold; both thresholds together accept ≥ .95."""
UNSURE = 0.01
"""Share of real images whose probability may be below the threshold."""
BLURRED = 0.95
"""Share of blurred real images that the sharpness threshold must reject."""


@dataclass(frozen=True)
class JudgeThresholds:
    """Values that an image's object must reach to count as right; by default the likeliest object counts."""

    margin: Mapping[str, float] = field(default_factory=dict)
    """Minimum margin of the templates, by style."""
    certainty: float = 0.0
    """Minimum probability of the object by the classifier."""
    sharpness: float = -1.0
    """Minimum advantage of the object's rendering over its blur."""

    def template(self, found: Match, scene: Scene) -> bool:
        """Return whether the templates accept the object of `scene`."""
        least = self.margin.get(scene.style, 0.0)
        return found.name == scene.object and found.margin >= least and found.sharpness > self.sharpness


def calibrated(renderer: Renderer, reader: Reader, passed: Pass, count: int = 512, seed: int = 200) -> JudgeThresholds:
    """Return thresholds that accept nearly all of `count` real renders after the autoencoder `passed`, and reject
    blurs.

    The scenes differ from the judged ones; each size has an equal share.
    """
    scenes = balanced_scenes(count, seed)
    margins: dict[str, list[float]] = {}
    sure: list[float] = []
    blurs: list[float] = []
    for i, size in enumerate(SIZES):
        part = scenes[i :: len(SIZES)]
        if not part:
            continue
        pictures = passed(np.stack([renderer.render(scene, *size, layout=n).pixels for n, scene in enumerate(part)]))
        read = reader(pictures)
        for n, (picture, scene) in enumerate(zip(pictures, part, strict=True)):
            margins.setdefault(scene.style, []).append(match(picture, scene, renderer).margin)
            sure.append(read.certainty[n] if read.words["object"][n] == scene.object else 0.0)
            if n % 4 == 0:
                blurs.append(match(blurred(picture, scene), scene, renderer).sharpness)
    least = {style: max(0.0, float(np.quantile(found, UNLIKE))) for style, found in margins.items()}
    return JudgeThresholds(least, float(np.quantile(sure, UNSURE)), float(np.quantile(blurs, BLURRED)))
