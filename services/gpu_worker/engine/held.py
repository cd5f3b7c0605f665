"""Held latents, which a run takes over: the first frames of a clip, or cells of an image outside of a mask."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from services.gpu_worker.engine.samplers import Schedule


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
