"""Timing of exported denoisers in turns, so that other load on the machine affects all of them equally."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch

from services.trainer.evaluation.drawing import open_pipeline
from services.trainer.judging.judge import Draw
from services.trainer.text_to_image.autoencoder import STRIDE
from shared.models.scenes import Scene

SIZE = (64, 64)
REQUESTS = (1, 4)
"""Numbers of requests per step; with guidance above 1 each request is two rows."""
ROUNDS, FORWARDS, PICTURES = 7, 8, 3


def measure_speed(models: Mapping[str, tuple[Path, float]], steps: int) -> dict[str, dict[str, Any]]:
    """Return `step_seconds` by batch size and `seconds_per_picture` for each name → (folder, guidance).

    `seconds_per_picture` is one image of 64×64 by the whole pipeline, alone. All are medians on this process's threads.
    """
    pipelines = {name: open_pipeline(folder) for name, (folder, _) in models.items()}
    timed: dict[tuple[str, int], list[float]] = {}
    alone: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for name, (_, guidance) in models.items():
            for requests in REQUESTS:
                step = _one_step(pipelines[name], requests * (2 if guidance > 1 else 1))
                timed.setdefault((name, requests), []).append(_seconds(step, FORWARDS) / FORWARDS)
    for _ in range(PICTURES):
        for name, (_, guidance) in models.items():
            alone.setdefault(name, []).append(_seconds(_one_picture(pipelines[name], steps, guidance), 1))
    return {
        name: {
            "step_seconds": {str(requests): median(timed[name, requests]) for requests in REQUESTS},
            "seconds_per_picture": median(alone[name]),
            "threads": torch.get_num_threads(),
        }
        for name in models
    }


def seconds_alone(draw: Draw) -> float:
    """Return the median seconds of one image of 64×64 alone; for renders, the cost of a render, encoding and
    decoding."""
    scene = Scene("fox", colour="red", background="snow")
    draw([scene], SIZE)  # warm
    return median(draw([scene], SIZE)[1] for _ in range(9))


def _one_step(pipeline: Any, rows: int) -> Callable[[], None]:
    unet = pipeline.unet
    latents = torch.randn(rows, unet.config.in_channels, SIZE[1] // STRIDE, SIZE[0] // STRIDE)
    states = torch.randn(rows, pipeline.tokenizer.model_max_length, unet.config.cross_attention_dim)
    timesteps = torch.full((rows,), 500)

    @torch.inference_mode()
    def step() -> None:
        unet(latents, timesteps, encoder_hidden_states=states)

    return step


def _one_picture(pipeline: Any, steps: int, guidance: float) -> Callable[[], None]:
    def draw() -> None:
        pipeline(
            "a red fox in the snow", width=SIZE[0], height=SIZE[1], num_inference_steps=steps, guidance_scale=guidance
        )

    return draw


def _seconds(call: Callable[[], None], times: int) -> float:
    call()  # warm
    began = time.perf_counter()
    for _ in range(times):
        call()
    return time.perf_counter() - began
