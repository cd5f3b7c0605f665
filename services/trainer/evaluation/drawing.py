"""Generation with an exported model exactly as a user runs it: stock diffusers, from the shipped folder."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from diffusers import StableDiffusionPipeline

from services.trainer.judging.judge import Draw
from shared.models.scenes import WORDINGS, Scene, caption

STEPS = 50
GUIDANCE = 2.5
BATCH = 16


def pipeline_draw(folder: Path, steps: int = STEPS, guidance: float = GUIDANCE) -> Draw:
    """Return a `Draw` over the pipeline in `folder`; a scene's wording and noise depend on the scene and the size
    only."""
    pipeline = open_pipeline(folder)

    def draw(scenes: Sequence[Scene], size: tuple[int, int]) -> tuple[npt.NDArray[np.uint8], float]:
        began = time.monotonic()
        seeds, said = seeds_and_words(scenes, size)
        return _drawn(pipeline, said, size, seeds, steps, guidance), time.monotonic() - began

    return draw


def seeds_and_words(scenes: Sequence[Scene], size: tuple[int, int]) -> tuple[list[int], list[str]]:
    """Return each scene's seed and wording, the same for every judgement of these scenes."""
    seeds = [zlib.crc32(f"{scene} {size}".encode()) for scene in scenes]
    return seeds, [caption(scene, seed % WORDINGS) for scene, seed in zip(scenes, seeds, strict=True)]


def prompt_pictures(
    folder: Path,
    prompts: Sequence[str],
    size: tuple[int, int] = (64, 64),
    steps: int = STEPS,
    guidance: float = GUIDANCE,
) -> npt.NDArray[np.uint8]:
    """Return images (B, height, width, 3) of prompts; prompt number i is generated with seed i."""
    pipeline = open_pipeline(folder)
    batches = [
        _drawn(pipeline, prompts[start : start + BATCH], size, range(start, start + BATCH), steps, guidance)
        for start in range(0, len(prompts), BATCH)
    ]
    return np.concatenate(batches)


def open_pipeline(folder: Path) -> Any:
    """Open the stock pipeline in `folder`, in float32, without a progress bar."""
    pipeline = StableDiffusionPipeline.from_pretrained(
        folder, torch_dtype=torch.float32, use_safetensors=True, safety_checker=None
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _drawn(
    pipeline: Any, prompts: Sequence[str], size: tuple[int, int], seeds: Sequence[int], steps: int, guidance: float
) -> npt.NDArray[np.uint8]:
    found = pipeline(
        list(prompts),
        width=size[0],
        height=size[1],
        num_inference_steps=steps,
        guidance_scale=guidance,
        generator=[torch.Generator().manual_seed(seed) for seed, _ in zip(seeds, prompts, strict=False)],
        output_type="np",
    ).images
    pictures: npt.NDArray[np.uint8] = (found * 255).round().astype(np.uint8)
    return pictures
