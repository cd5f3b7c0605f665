"""Caches between steps that diffusers ships, on a tiny random FLUX: time and difference of the latents."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

CACHES = ("FirstBlockCache", "MagCache", "TaylorSeer")
DEEP = {"num_layers": 4, "num_single_layers": 4}
"""Blocks of the FLUX; one of each would leave FirstBlockCache nothing to skip."""


def timed_caches(steps: int, rows: int) -> dict[str, dict[str, float]]:
    """Return, for each cache with diffusers' defaults, the share of processor time saved and the mean squared
    difference of the final latents, as a share of their square. MagCache takes equal magnitudes."""
    from tests import tiny_families

    with tempfile.TemporaryDirectory() as folder:
        saved = tiny_families.save(Path(folder) / "flux", "flux", guidance_embeds=False, **DEEP)
        plain, plain_s = _latents(saved, steps, rows, None)
        runs = {name: _latents(saved, steps, rows, _configs(steps)[name]) for name in CACHES}
    figures = {}
    for name, (found, seconds) in runs.items():
        difference = float(np.square(found - plain).mean() / np.square(plain).mean())
        figures[name] = {"time_saved": 1 - seconds / plain_s, "difference": difference}
    return figures


def _configs(steps: int) -> dict[str, Callable[[], Any]]:
    from diffusers.hooks import FirstBlockCacheConfig, MagCacheConfig, TaylorSeerCacheConfig

    return {
        "FirstBlockCache": FirstBlockCacheConfig,
        "MagCache": lambda: MagCacheConfig(num_inference_steps=steps, mag_ratios=[1.0] * steps),
        "TaylorSeer": lambda: TaylorSeerCacheConfig(taylor_factors_dtype=torch.float32),
    }


def _latents(saved: Path, steps: int, rows: int, config: Callable[[], Any] | None) -> tuple[np.ndarray, float]:
    """Run `rows` images without guidance; return their final latents and the processor seconds of the steps."""
    from services.gpu_worker.engine.row_start import make_row
    from services.gpu_worker.engine.rows import Task
    from services.gpu_worker.families import load_family
    from shared.domain.types import Size
    from shared.models import find_card

    family: Any = load_family(find_card(str(saved)), device="cpu")
    tasks = [Task(str(n), "flux", f"scene {n}", Size(64, 64), steps, 1.0, seed=n) for n in range(rows)]
    own = [make_row(family, task) for task in tasks]
    if config is not None:
        family.denoiser.enable_cache(config())
    begun = time.process_time()
    with family.denoiser.cache_context("step"):
        for _ in range(steps):
            for row, stepped in zip(own, family.step(own), strict=True):
                row.latent, row.done = stepped.latent, row.done + 1
    seconds = time.process_time() - begun
    return np.stack([row.latent.numpy() for row in own]), seconds
