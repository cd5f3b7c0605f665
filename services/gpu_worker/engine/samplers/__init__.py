"""Samplers: one step for a batch of rows, each at its own timestep of its own schedule."""

from __future__ import annotations

import warnings
from typing import Any

from services.gpu_worker.engine.samplers.ddim import DDIM
from services.gpu_worker.engine.samplers.dpm_solver import DPMSolver2M
from services.gpu_worker.engine.samplers.flow_match import EvenFlowMatchEuler, FlowMatchEuler
from services.gpu_worker.engine.samplers.schedule import Position, Sampler, Schedule
from shared.domain.errors import ModelError

__all__ = [
    "DDIM",
    "DPMSolver2M",
    "EvenFlowMatchEuler",
    "FlowMatchEuler",
    "Position",
    "Sampler",
    "Schedule",
    "make_sampler",
]

FLOWS = {kind.name: kind for kind in (FlowMatchEuler, EvenFlowMatchEuler)}


def make_sampler(name: str, config: dict[str, Any], *, eta: float = 0.0, patch: int = 2) -> Sampler:
    """Return the sampler that a card or a task names.

    Raises ModelError for an unknown name or an unsupported configuration.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # diffusers, on configurations older than itself
        if name == DDIM.name:
            return DDIM(config, eta=eta)
        if name == DPMSolver2M.name:
            return DPMSolver2M(config, eta=eta)
        if name in FLOWS:
            return FLOWS[name](config, patch=patch)
    known = ", ".join((DDIM.name, DPMSolver2M.name, *FLOWS))
    raise ModelError(f"sampler must be one of {known} (got {name!r})")
