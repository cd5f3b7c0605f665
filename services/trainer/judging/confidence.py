"""How sure the judges must be: as sure as they are of real renders that went through the autoencoder, not of blurs."""

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
"""Sends pictures through an autoencoder and back."""

UNLIKE = 0.03
"""The share of real pictures of a style whose margin may lie under the bar; both bars together leave ≥ .95 of them."""
UNSURE = 0.01
"""The share of real pictures that the classifier may be less sure of."""
BLURRED = 0.95
"""The share of blurred real pictures that must be turned down as blurred."""


@dataclass(frozen=True)
class JudgeThresholds:
    """What a picture's object must reach to be called right; without one, being the likeliest of all is enough."""

    margin: Mapping[str, float] = field(default_factory=dict)
    """By style: the least margin of the templates."""
    certainty: float = 0.0
    """The least probability that the classifier gives the object."""
    sharpness: float = -1.0
    """The least by which the object's rendering must fit better than its blur."""

    def template(self, found: Match, scene: Scene) -> bool:
        """Whether the templates call the object of `scene` right."""
        least = self.margin.get(scene.style, 0.0)
        return found.name == scene.object and found.margin >= least and found.sharpness > self.sharpness


def calibrated(renderer: Renderer, reader: Reader, passed: Pass, count: int = 512, seed: int = 200) -> JudgeThresholds:
    """The bar that nearly all of `count` real renders clear after the autoencoder `passed`, and blurred ones do not.

    The scenes are others than the judged ones, an equal share at each size.
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
