"""Seconds of one denoising step for a mix of sizes: a support vector regression as arrays (PatchedServe §6.1.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.domain.errors import ModelError
from shared.models.card import ModelCard
from shared.models.k_table import Profiles
from shared.runtime.telemetry import log

KIND = "step_seconds"
"""Kind of these regressions in the catalog."""
FILE = "step_seconds.json"
LEAST_MIXES = 10
"""Fewest mixes of a fit; the paper takes 300."""
Floats = npt.NDArray[np.float64]

Resolution = tuple[int, int, int]
"""Width and height in pixels, and frames (1: an image)."""
Mix = tuple[tuple[Resolution, int], ...]
"""Forward passes of a step by resolution, ascending. A request with guidance counts as two passes."""


def mix_of(passes: Iterable[tuple[Resolution, int]]) -> Mix:
    """Return the mix of rows, each given by its resolution and forward passes."""
    counts: dict[Resolution, int] = {}
    for resolution, count in passes:
        counts[resolution] = counts.get(resolution, 0) + count
    return tuple(sorted(counts.items()))


def pixels(mix: Mix) -> int:
    """Return the pixels of all passes."""
    return sum(width * height * frames * count for (width, height, frames), count in mix)


def features(mix: Mix, resolutions: tuple[Resolution, ...]) -> list[float]:
    """Return the paper's features: passes of each resolution, resolutions present, and patches, here as pixels."""
    counts = dict(mix)
    return [*(float(counts.get(one, 0)) for one in resolutions), float(len(mix)), float(pixels(mix))]


@dataclass(frozen=True, eq=False)
class StepRegression:
    """Support vector regression with a Gaussian kernel over scaled features."""

    resolutions: tuple[Resolution, ...]
    most: int
    """Most passes of a mix that was measured. Beyond them the kernel says nothing."""
    layout: str
    """Layout of the measured batches, as in the setting."""
    mean: Floats
    """(features,): subtracted from the features, which are then divided by `scale`."""
    scale: Floats
    support: Floats
    """(vectors, features), scaled."""
    weights: Floats
    """(vectors,), in seconds."""
    gamma: float
    intercept: float
    error: float
    """95th percentile of the relative error, on mixes held out of the fit."""

    def seconds(self, mix: Mix) -> float | None:
        """Return the seconds of a step; None for a mix that it cannot predict: larger than those measured,
        of other resolutions, or so small that the result is not positive."""
        if sum(count for _, count in mix) > self.most or not {one for one, _ in mix} <= {*self.resolutions}:
            return None
        at = (np.array(features(mix, self.resolutions)) - self.mean) / self.scale
        kernel = np.exp(-self.gamma * np.square(self.support - at).sum(axis=1))
        found = float(kernel @ self.weights) + self.intercept
        return found if found > 0 else None


def regression_to_json(one: StepRegression) -> dict[str, Any]:
    """Return the JSON value stored in the catalog and in `step_seconds.json`."""
    arrays = {name: getattr(one, name).tolist() for name in ("mean", "scale", "support", "weights")}
    numbers = {name: getattr(one, name) for name in ("most", "layout", "gamma", "intercept", "error")}
    return {"resolutions": [list(each) for each in one.resolutions], **numbers, **arrays}


def regression_from_json(value: Mapping[str, Any]) -> StepRegression:
    """Read what `regression_to_json` wrote. Raises ModelError for anything else."""
    try:
        mean, scale, support, weights = (
            np.array(value[name], dtype=np.float64) for name in ("mean", "scale", "support", "weights")
        )
        resolutions = tuple((int(w), int(h), int(f)) for w, h, f in value["resolutions"])
        gamma, intercept, error = (float(value[name]) for name in ("gamma", "intercept", "error"))
        most, layout = int(value["most"]), str(value["layout"])
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise ModelError(f"{FILE}: not a regression of step seconds ({cause!r})") from cause
    width = len(resolutions) + 2
    fits = mean.shape == scale.shape == (width,) and support.shape == (len(weights), width) and weights.ndim == 1
    finite = all(np.isfinite(one).all() for one in (mean, scale, support, weights, gamma, intercept, error))
    if not (fits and finite and (scale > 0).all()):
        raise ModelError(f"{FILE}: arrays must be finite and fit {width} features")
    return StepRegression(resolutions, most, layout, mean, scale, support, weights, gamma, intercept, error)


async def load_regression(profiles: Profiles, card: ModelCard) -> StepRegression | None:
    """Return the regression that `afterimage profile --mixes` measured with these weights; None if there is none."""
    found = await profiles.get(KIND, card.name, card.weights_hash)
    try:
        return regression_from_json(found) if found is not None else None
    except ModelError as error:
        log("step_seconds").warning("the measured step times are ignored", model=card.name, error=str(error))
        return None
