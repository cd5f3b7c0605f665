"""Measure the seconds of one denoising step by batch size, and of the decoding of one image or clip."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import BatchRan, Finished
from services.gpu_worker.engine.rows import Task
from services.gpu_worker.families import Family
from services.gpu_worker.models.layout_profile import device_name


def measure_latency(family: Family, batches: Sequence[int], steps: int = 6) -> dict[str, Any]:
    """Return the median seconds of one denoising step, by batch size, and of the decoding of one image or clip."""
    card, frames = family.card, family.card.frames.default
    step_s, decode_s = {}, []
    for rows in batches:
        engine, seconds = Engine({card.name: family}, max_rows=rows * frames), []
        for row in range(rows):
            engine.submit(
                Task(str(row), card.name, "latency", card.default_size, steps, card.default_guidance, row, frames)
            )
        begun = time.monotonic()
        while not engine.idle:
            for event in engine.step():
                if isinstance(event, BatchRan):
                    seconds.append(event.seconds)
                elif isinstance(event, Finished):
                    decode_s.append(event.decode_s)
        step_s[rows] = median(seconds[1:])  # the first is slower
        if time.monotonic() - begun > 60.0:
            break
    return {
        "step_s": step_s,
        "decode_s": median(decode_s),
        "size": str(card.default_size),
        "threads": torch.get_num_threads(),
        "device": device_name(family.device),
    }
