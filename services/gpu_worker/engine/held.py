"""Held latents, which a run takes over: the first frames of a clip, cells of an image outside of a mask, or patches
that keep the trajectory of another image."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from services.gpu_worker.engine.samplers import Schedule

CHANGED = 0.15
"""Change of a patch above which it is generated anew: the mean squared difference of the clean latent that the first
step predicts from the source's, as a share of the variance of the source's latent (docs/adr/0023-regions.md)."""
MOST_ANEW = 0.9
"""Largest share of patches generated anew with which the others are held: more would save too little."""


@dataclass(frozen=True, eq=False)
class Held:
    """The known frames of a row. Before each step they replace the row's own, brought to the noise level of that step,
    so that the denoiser sees them beside the frames that it generates.

    This is the replacement method of Video Diffusion Models (Ho et al. 2022, §3.1) and of RePaint (Lugmayr et al. 2022,
    eq. 8a), without RePaint's jumps back. The noise stays the same in all steps, as along a deterministic run, so the
    held latents at any step follow from the seed and the frames alone.
    """

    clean: Tensor
    """The frames' latent without noise, (C, k, h, w)."""
    noise: Tensor
    """The row's first noise in these frames, (C, k, h, w)."""

    def put(self, latent: Tensor, schedule: Schedule, done: int) -> Tensor:
        """Return (C, F, h, w) with the held frames at the noise level after `done` steps; after the last, clean."""
        return self._before(
            latent, schedule.add_noise(self.clean, self.noise, done) if done < schedule.steps else self.clean
        )

    def put_clean(self, clean: Tensor) -> Tensor:
        """Return the predicted clean latent (C, F, h, w) with the held frames as they are."""
        return self._before(clean, self.clean)

    def _before(self, latent: Tensor, first: Tensor) -> Tensor:
        return torch.cat([first, latent[:, first.shape[1] :]], dim=1)


@dataclass(frozen=True, eq=False)
class HeldCells:
    """The known cells of an image, which replace the row's own before each step, as `Held` does with frames: the
    inpainting of RePaint (Lugmayr et al. 2022, eq. 8) without its jumps back."""

    clean: Tensor
    """The image's latent without noise, (C, h, w)."""
    noise: Tensor
    """The row's first noise, (C, h, w)."""
    anew: Tensor
    """Cells that the run generates, bool (h, w)."""

    def put(self, latent: Tensor, schedule: Schedule, done: int) -> Tensor:
        """Return (C, h, w) with the held cells at the noise level after `done` steps; after the last, clean."""
        known = schedule.add_noise(self.clean, self.noise, done) if done < schedule.steps else self.clean
        return torch.where(self.anew, latent, known)

    def put_clean(self, clean: Tensor) -> Tensor:
        """Return the predicted clean latent (C, h, w) with the held cells as they are."""
        return torch.where(self.anew, clean, self.clean)


@dataclass(frozen=True, eq=False)
class HeldRegion(HeldCells):
    """The cells of the image whose latent starts the run. Outside of the region that changes, they keep near its
    trajectory up to the step `until` (the second stage of Chorus, arXiv 2604.04451).

    Nothing of that trajectory is stored. Latent at K and clean latent give a noise (`Schedule.noise_of`), and with a
    noise that stays the same they give every later latent: an approximation, since a run predicts both anew in each
    step. The first step computes all cells; its prediction tells which patches change.
    """

    until: int = 0
    """Last step whose result outside of the region is replaced; the denoiser need not compute it."""
    side: int = 1
    """Cells per side of a patch."""
    most: int = 0
    """Steps in a row for which a held patch may take a block's last output."""

    def found(self, predicted: Tensor) -> HeldRegion | None:
        """Return the region by the first step's predicted clean latent (C, h, w); None where most patches change."""
        change = (predicted - self.clean).square().mean(0) / self.clean.var()
        patches = F.avg_pool2d(change[None], self.side)[0] > CHANGED
        if patches.float().mean() > MOST_ANEW:
            return None
        return replace(self, anew=patches.repeat_interleave(self.side, 0).repeat_interleave(self.side, 1))

    @cached_property
    def reuses(self) -> npt.NDArray[np.int64]:
        """Return for each patch, row by row, the steps in a row for which it may take a block's last output: `most` if
        all its cells are held, else 0."""
        changing = F.max_pool2d(self.anew[None].float(), self.side)[0].bool().flatten()
        return np.where(changing.cpu().numpy(), 0, self.most)
