"""A denoiser that runs each batch in groups or in one batch of all sizes, whichever is faster (`layout=auto`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from services.gpu_worker.engine.layout import Forward, Pass, denoise_by_shape
from services.gpu_worker.engine.layout_choice import Ran
from services.gpu_worker.engine.passes import resolution_of
from services.gpu_worker.engine.patches.patched_model import PatchedModel
from shared.models.step_regression import Mix, mix_of


class Choice(Protocol):
    """The faster layout of each mix: LayoutChoice, or a fixed one for measurements."""

    def together(self, mix: Mix) -> bool: ...

    def took(self, ran: Ran) -> None: ...


class AutoLayout:
    """A loaded denoiser with a choice of its layout for each step."""

    def __init__(
        self,
        mixed: PatchedModel,
        choice: Choice,
        device: torch.device,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.mixed, self.choice = mixed, choice
        self._device, self._clock = device, clock

    def denoise(self, passes: Sequence[Pass], forward: Forward) -> list[Tensor]:
        """Run the passes in the layout that the choice names, and record the seconds, unless blocks were reused: a step
        in the other layout than the last reuses none."""
        if not self.mixed.mixes(passes):
            return denoise_by_shape(passes, forward)
        mix = mix_of((resolution_of(one.row.task), 1) for one in passes)
        together, skipped = self.choice.together(mix), [one.row.skipped for one in passes]
        begun = self._now()
        outputs = self.mixed.denoise(passes, forward) if together else denoise_by_shape(passes, forward)
        seconds = self._now() - begun
        if skipped == [one.row.skipped for one in passes]:
            self.choice.took(Ran(mix, together, seconds))
        return outputs

    def _now(self) -> float:
        """Return the seconds of the clock after all work so far, such as the texts of requests that just joined."""
        if self._device.type == "cuda":  # CUDA kernels run asynchronously; wait for them before reading the clock
            torch.cuda.synchronize(self._device)
        return self._clock()
