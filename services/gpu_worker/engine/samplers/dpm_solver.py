"""DPM-Solver++ (2M): second-order steps from the clean latents of this step and of the one before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from services.gpu_worker.engine.samplers.ddim import predicted
from services.gpu_worker.engine.samplers.schedule import Position, Schedule, columns, renew, wide
from shared.domain.errors import ModelError
from shared.models.schedules import DPM_SOLVER


class DPMSolver2M:
    """DPM-Solver++ (2M) (Lu et al. 2022, arXiv 2211.01095, algorithm 2), as diffusers' DPMSolverMultistepScheduler.

    For ε, v, x0 and flow prediction. In our terms a step is DDIM's step plus `bend · (x̂0 − previous x̂0)`. A row without
    history takes the plain first-order step: at its start, from a state of the cache, from an image. The last step is
    also of first order by default, so no step of a run of T = 1 or 2 is of second order.

    Fresh noise goes into the first step after a start, which has no history. With f² = 1 − exp(−2h) that step is
    SDE-DPM-Solver++'s of first order; h is the step in log signal-to-noise.
    """

    name: ClassVar[str] = DPM_SOLVER
    multistep: ClassVar[bool] = True

    def __init__(self, config: dict[str, Any], *, eta: float = 0.0) -> None:
        from diffusers import DPMSolverMultistepScheduler

        _check(config, eta)
        self._scheduler = DPMSolverMultistepScheduler.from_config(config, algorithm_type="dpmsolver++", solver_order=2)
        self._prediction = str(self._scheduler.config.prediction_type)
        self._schedule = lru_cache(maxsize=256)(self._make_schedule)

    def schedule(self, steps: int, cells: tuple[int, ...]) -> Schedule:
        return self._schedule(steps)

    def _make_schedule(self, steps: int) -> Schedule:
        scheduler = self._scheduler
        scheduler.set_timesteps(steps)
        # trailing spacing rounds to T + 1 timesteps for some T (61); the last one, -1, does not exist
        sigmas = torch.cat([scheduler.sigmas[:steps], scheduler.sigmas[-1:]])
        levels = torch.stack(scheduler._sigma_to_alpha_sigma_t(sigmas), dim=1)
        return Schedule(
            timesteps=scheduler.timesteps[:steps].clone(),
            level=levels,
            left=levels[1:],
            renewed=torch.zeros(steps),
            bend=self._bends(levels),
        )

    def _bends(self, levels: Tensor) -> Tensor:
        """Return (T,) weights of x̂0 − previous x̂0; 0 in steps of first order."""
        config, steps = self._scheduler.config, len(levels) - 1
        signal, spread = levels.double().unbind(1)
        log_ratio = signal.log() - spread.log()  # λ; infinite where no noise is left
        h = log_ratio.diff()
        of_clean = signal[1:] - signal[:-1] * spread[1:] / spread[:-1]  # −α(e⁻ʰ − 1)
        weight = of_clean / 2 if config.solver_type == "midpoint" else signal[1:] - of_clean / h
        bends = torch.zeros(steps, dtype=torch.float64)
        bends[1:] = weight[1:] * h[1:] / h[:-1]
        euler = config.euler_at_final or (config.lower_order_final and steps < 15)
        if euler or config.final_sigmas_type == "zero":
            bends[-1] = 0
        return bends.float()

    def step(
        self, latents: Tensor, outputs: Tensor, positions: Sequence[Position], noise: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        a, b, a_next, b_next, shares = columns(positions)
        a, b, a_next, b_next = (wide(column, latents) for column in (a, b, a_next, b_next))
        clean, epsilon = predicted(self._prediction, latents, outputs, a, b)
        moved = a_next * clean + b_next * renew(epsilon, shares, noise)
        if all(position.previous is None for position in positions):
            return moved, clean
        bends = torch.stack([cast(Tensor, p.schedule.bend)[p.done] for p in positions])
        # a row without history counts its own clean latent as the previous one: the difference is exactly 0
        before = [clean[i] if p.previous is None else p.previous for i, p in enumerate(positions)]
        return moved + wide(bends, latents) * (clean - torch.stack(before)), clean


def _check(config: dict[str, Any], eta: float) -> None:
    """Raise ModelError for a configuration whose steps depend on more than this sampler reads."""
    if eta:
        raise ModelError(f"card.json: eta must be 0 for {DPM_SOLVER} (got {eta}); it belongs to ddim")
    for name in ("thresholding", "use_dynamic_shifting"):
        if config.get(name):
            raise ModelError(f"scheduler_config.json: {name} must be false for {DPM_SOLVER} (got true)")
    if math.isfinite(least := float(config.get("lambda_min_clipped", -math.inf))):
        raise ModelError(f"scheduler_config.json: lambda_min_clipped must be -Infinity for {DPM_SOLVER} (got {least})")
    if "snr_shift_scale" in config:
        raise ModelError(f"sampler {DPM_SOLVER} does not run CogVideoX: scheduler_config.json has a snr_shift_scale")
    flow = config.get("prediction_type") == "flow_prediction" or "shift" in config
    if flow and not config.get("use_flow_sigmas"):
        rule = f"use_flow_sigmas must be true for {DPM_SOLVER} on a flow-matching model"
        raise ModelError(f"scheduler_config.json: {rule} (got false)")
