"""Draws scenes with an exported model exactly as a user would: stock diffusers, from the folder that ships."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from diffusers import StableDiffusionPipeline

from services.trainer.judge import Draw
from shared.scenes import WORDINGS, Scene, caption

STEPS = 50
GUIDANCE = 2.5


def pipeline_draw(folder: Path, steps: int = STEPS, guidance: float = GUIDANCE, autocast: bool = False) -> Draw:
    """A `Draw` over the pipeline in `folder`; a scene's wording and noise depend on its place in the batch only."""
    pipeline = StableDiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32, safety_checker=None)
    pipeline.set_progress_bar_config(disable=True)

    def draw(scenes: Sequence[Scene], size: tuple[int, int]) -> tuple[npt.NDArray[np.uint8], float]:
        began = time.monotonic()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found = pipeline(
                [caption(scene, i % WORDINGS) for i, scene in enumerate(scenes)],
                width=size[0],
                height=size[1],
                num_inference_steps=steps,
                guidance_scale=guidance,
                generator=[torch.Generator().manual_seed(1000 + i) for i in range(len(scenes))],
                output_type="np",
            ).images
        return (found * 255).round().astype(np.uint8), time.monotonic() - began

    return draw
