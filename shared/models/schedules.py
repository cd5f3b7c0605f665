"""Noise levels of a schedule without torch, so that a planner can check whether a latent fits another schedule."""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from typing import Any

import numpy as np

NOT_HASHED = ("_class_name", "_diffusers_version", "skip_prk_steps")
"""Keys of scheduler_config.json that our samplers do not read."""
DPM_SOLVER = "dpm++2m"
_REMAPPED = ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "use_lu_lambdas")
"""Keys that make a DPM-Solver space its noise levels by themselves, from the highest to the lowest trained level."""


def sampler_id(name: str, config: dict[str, Any], eta: float = 0.0) -> str:
    """Return `name:hash`, with a hash over every configuration key that changes a step (see noise_process)."""
    kept = {key: value for key, value in config.items() if key not in NOT_HASHED} | {"eta": eta}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
    return f"{name}:{digest[:12]}"


def noise_process(name: str, config: dict[str, Any], eta: float = 0.0) -> str:
    """Return CompatKey.sampler: equal for samplers whose states after K of T steps have the same noise and level.

    DDIM and `dpm++2m` share their levels under `trailing` spacing (within one trained timestep where T does not divide
    the trained range), so a state of one starts a run of the other. The key is DDIM's, as stored before there was
    another sampler. Every other sampler has its own key.
    """
    if name != DPM_SOLVER or config.get("timestep_spacing") != "trailing":
        return sampler_id(name, config, eta)
    remapped = any(config.get(key) for key in (*_REMAPPED, "use_flow_sigmas"))
    return sampler_id(name if remapped else "ddim", config, eta)


def dpm_timesteps(config: dict[str, Any], steps: int) -> np.ndarray:
    """Return the timesteps of a DPM-Solver run over a trained noise schedule, int64 (steps,), highest noise first."""
    trained = int(config.get("num_train_timesteps", 1000))
    spacing = config.get("timestep_spacing", "linspace")
    if spacing == "linspace":
        return np.linspace(0, trained - 1, steps + 1).round()[:0:-1].astype(np.int64)
    if spacing == "trailing":
        return np.round(np.arange(trained, 0, -trained / steps))[:steps].astype(np.int64) - 1
    return np.arange(steps, 0, -1) * (trained // (steps + 1)) + int(config.get("steps_offset", 0))


def ddim_timesteps(config: dict[str, Any], steps: int) -> np.ndarray:
    """Return the timesteps of a DDIM run, int64 (steps,), highest noise first, for every `timestep_spacing` of
    diffusers."""
    trained = int(config.get("num_train_timesteps", 1000))
    spacing = config.get("timestep_spacing", "leading")
    if spacing == "linspace":
        return np.linspace(0, trained - 1, steps).round()[::-1].astype(np.int64)
    if spacing == "trailing":
        return np.round(np.arange(trained, 0, -trained / steps))[:steps].astype(np.int64) - 1
    return (np.arange(steps) * (trained // steps))[::-1].astype(np.int64) + int(config.get("steps_offset", 0))


def noise_level(sampler: str, config: dict[str, Any], steps: int, step: int) -> Fraction:
    """Return the noise level of a latent after `step` of `steps` as an exact number; equal numbers are equal levels.

    DDIM: the timestep whose ᾱ the latent has (-1: no noise left). Flow matching: the position of the unshifted sigma
    between the schedule's ends, spaced like diffusers; shifting is monotone, and equal for every T of a size.
    DPM-Solver: either of the two, as its configuration says.
    """
    if step == steps:
        return Fraction(-1)
    if sampler == "ddim":
        if step == 0:
            return Fraction(int(ddim_timesteps(config, steps)[0]))
        stride = int(config.get("num_train_timesteps", 1000)) // steps
        return Fraction(int(ddim_timesteps(config, steps)[step - 1]) - stride)
    if sampler == DPM_SOLVER and not any(config.get(key) for key in _REMAPPED):
        if config.get("use_flow_sigmas"):
            return Fraction(steps - step, steps)
        return Fraction(int(dpm_timesteps(config, steps)[step]))
    if sampler == "flow_match_euler_even":  # FluxPipeline: 1, (T−1)/T, … 1/T
        return Fraction(steps - step, steps)
    # diffusers spaces sigmas linearly from σ_max to σ_min over T points (both included)
    return Fraction(steps - 1 - step, max(steps - 1, 1))


def nearest_step(sampler: str, config: dict[str, Any], planned: tuple[int, int], steps: int) -> int:
    """Return the step of a run of `steps` whose noise level is nearest to that of `planned`, (k, T), of the same model.

    Of two equally near levels, the level with more noise is taken. 0 means that the start of the run is nearest. Levels
    need not be equal, unlike those of a latent: noise is added to an image for the level of any step.
    """

    def level(step: int, of: int) -> Fraction:
        if sampler == "ddim":  # noise is added to an image for the step's own timestep
            return Fraction(int(ddim_timesteps(config, of)[step]))
        return noise_level(sampler, config, of, step)

    wanted = level(*planned)
    return min(range(steps), key=lambda step: (abs(level(step, steps) - wanted), step))


def same_noise_level(sampler: str, config: dict[str, Any], state: tuple[int, int], wanted: tuple[int, int]) -> bool:
    """Return whether a latent after K of T steps (`state`) can start a run of T' steps after K' (`wanted`).

    The latent must have the noise that step K' of the new schedule expects: the level of that step's own timestep. The
    level that the step before would leave differs by rounding if T does not divide the trained range.
    """
    (step, steps), (start, total) = state, wanted
    if steps == total:
        return step == start
    if config.get("shift_terminal"):  # every T has its own factor that stretches it to the same last sigma
        return False
    if sampler == "ddim" and start < total:
        return noise_level(sampler, config, steps, step) == int(ddim_timesteps(config, total)[start])
    return noise_level(sampler, config, steps, step) == noise_level(sampler, config, total, start)
