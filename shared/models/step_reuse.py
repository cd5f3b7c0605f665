"""Which patches take a block's output of an earlier step: a random forest as arrays (PatchedServe §5.1, §7).

`afterimage profile --reuse` trains it, and writes `step_reuse.json` beside the weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.domain.errors import ModelError

FILE = "step_reuse.json"
UNETS = ("unet",)
TRANSFORMERS = ("sd3", "flux", "sana")
LEAST_IMAGES = 256
"""Images on which quality must be judged before reuse counts as shown to keep it."""
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class StepReuse:
    """A forest whose votes fall as the input changes more, so that each of its cells has one largest change.

    A *change* is the mean squared difference of two tensors, as a share of the mean square of the later one.
    """

    weights_hash: str
    layout: str
    """Value of the setting `layout` with which it was trained."""
    patch_px: int
    """Value of that setting; it counts with patches only."""
    most: int
    """N: times in a row that a patch may skip a block (§8.2); 0: none keeps the quality."""
    times: Floats
    """(t,): borders between the forest's intervals of timesteps, ascending; a border belongs to the earlier one."""
    limits: Floats
    """(blocks, reuses, t + 1): largest change of a block's input at which the output is reused, after 0, 1, … reuses
    in a row; −inf: never. Further reuses take the last row."""
    quality: Mapping[str, Any] = field(default_factory=dict)
    """Figures of the profile, for readers."""

    def reused(self, block: int, timesteps: npt.ArrayLike, in_a_row: Ints, changes: npt.ArrayLike) -> Mask:
        """Return which patches reuse the block's output.

        block: its number in the order in which blocks run. timesteps, in_a_row, changes: (P,): of each patch its
        timestep, the reuses since the block was computed, and the change of the block's input since then.
        """
        if block >= len(self.limits):
            return np.zeros(len(in_a_row), dtype=bool)
        # scikit-learn compares inputs in float32 with thresholds in float64
        times, moved = (np.asarray(each, dtype=np.float32).astype(np.float64) for each in (timesteps, changes))
        rows = np.minimum(in_a_row, self.limits.shape[1] - 1)
        limits = self.limits[block][rows, np.searchsorted(self.times, times)]
        found: Mask = (in_a_row < self.most) & (moved <= limits)
        return found

    @property
    def images(self) -> int:
        """Return the number of images on which the profile judged the quality; 0: not known."""
        return self._judged("images")

    @property
    def steps(self) -> int:
        """Return the T at which the profile judged the quality; 0: not known. With fewer steps an image changes more
        from step to step, and reuse damages it."""
        return self._judged("steps")

    def _judged(self, name: str) -> int:
        found = self.quality.get(name)
        return found if isinstance(found, int) else 0

    @cached_property
    def key(self) -> str:
        """Return 12 hex digits over everything that decides a reuse, for plans and for CompatKey.sampler."""
        decided = reuse_to_json(self) | {"quality": self.steps}
        return hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()[:12]


def reuse_to_json(one: StepReuse) -> dict[str, Any]:
    """Return the JSON value of `step_reuse.json`; null stands for −inf, "all" for inf."""
    return {
        "weights_hash": one.weights_hash,
        "layout": one.layout,
        "patch_px": one.patch_px,
        "most": one.most,
        "times": one.times.tolist(),
        "limits": [[[_written(limit) for limit in row] for row in block] for block in one.limits.tolist()],
        "quality": dict(one.quality),
    }


def reuse_from_json(value: Any) -> StepReuse:
    """Read what `reuse_to_json` wrote. Raises ModelError for anything else."""
    try:
        times = np.array(value["times"], dtype=np.float64)
        limits = np.array(
            [[[_read(limit) for limit in row] for row in block] for block in value["limits"]], dtype=np.float64
        )
        most, patch_px, quality = int(value["most"]), int(value["patch_px"]), dict(value.get("quality", {}))
        weights_hash, layout = str(value["weights_hash"]), str(value["layout"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as cause:
        raise ModelError(f"{FILE}: not a forest for reuse between steps ({cause!r})") from cause
    shaped = times.ndim == 1 and limits.ndim == 3 and limits.shape[1] > 0 and limits.shape[2] == len(times) + 1
    if not shaped or most < 0 or not np.isfinite(times).all() or (np.diff(times) <= 0).any() or np.isnan(limits).any():
        raise ModelError(f"{FILE}: limits must be (blocks, reuses, times + 1), times ascending, most 0 or more")
    return StepReuse(weights_hash, layout, patch_px, most, times, limits, quality)


def read_step_reuse(
    folder: Path, family: str, weights_hash: str, layout: str, patch_px: int
) -> tuple[StepReuse | None, str]:
    """Return the forest beside the weights, if it may be used with this layout; else None and the reason."""
    if family not in (*UNETS, *TRANSFORMERS):
        return None, f"family must be one of {', '.join((*UNETS, *TRANSFORMERS))} (got {family})"
    try:
        found = reuse_from_json(json.loads((folder / FILE).read_bytes()))
    except FileNotFoundError:
        return None, f"no {FILE} in {folder}; train one with `afterimage profile --reuse 256`"
    except (ModelError, OSError, ValueError) as error:
        return None, f"{folder / FILE} cannot be read: {error}"
    if found.weights_hash != weights_hash:
        return None, f"{FILE} must be of these weights, {weights_hash} (got {found.weights_hash})"
    # transformers reuse whole images in each layout, so that one forest counts for all
    if family in UNETS and (found.layout, found.patch_px) != (layout, patch_px):
        rule = f"must be trained with layout {layout} and patch_px {patch_px}"
        return None, f"{FILE} {rule} (got {found.layout}, {found.patch_px}); run `afterimage profile --reuse 256` again"
    if not found.most:
        return None, f"{FILE} found no number of reuses that keeps the quality"
    return found, ""


def _written(limit: float) -> float | str | None:
    return None if limit == -np.inf else "all" if limit == np.inf else limit


def _read(limit: Any) -> float:
    return -np.inf if limit is None else np.inf if limit == "all" else float(limit)
