"""States of clips at FlexCache's five steps, captured once and kept under `out/`."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import LatentCaptured, Left
from services.gpu_worker.engine.rows import Latent, Task
from services.gpu_worker.families import Family, load_family
from shared.domain.errors import CancelledError
from shared.domain.plan_rules import scale_steps
from shared.models import ModelCard
from shared.models.scenes.motion import clip_caption, random_moving_scene
from shared.runtime.progress import Remaining

OF_50 = (5, 10, 15, 20, 25)
"""FlexCache's five steps of 50 (§3.2)."""
States = dict[int, Latent]
"""Latents (C, F, h, w) by K."""


def prompt_of(number: int) -> str:
    return clip_caption(random_moving_scene(random.Random(number)))


def states_of(
    card: ModelCard, numbers: Sequence[int], frames: int, steps: int, folder: Path, device: str
) -> Iterator[tuple[int, Path]]:
    """Yield each number with the file of that clip's states; generate those that `folder` lacks, one after the other.

    The number of a clip is its seed. A run of `steps` ends after the last K.
    """
    family: Family | None = None
    remaining = Remaining(f"clips of {frames} frames", len(numbers))
    for number in numbers:
        path = folder / f"{frames}" / f"{number}.npz"
        if not path.exists():
            family = family or load_family(card, device=device)
            write_states(path, captured(family, number, frames, steps))
        yield number, path
        remaining.advance()


def captured(family: Family, number: int, frames: int, steps: int) -> States:
    """Run a clip from noise up to its last K; return its states."""
    card, states, ks = family.card, States(), scale_steps(OF_50, steps)
    engine = Engine({card.name: family}, max_rows=frames)
    engine.submit(
        Task(
            str(number), card.name, prompt_of(number), card.default_size, steps, card.default_guidance,
            seed=number, frames=frames, capture_steps=ks,
        )
    )  # fmt: skip
    while not engine.idle:
        for event in engine.step():
            match event:
                case LatentCaptured(step=step, latent=latent):
                    states[step] = latent
                    if step == max(ks):
                        engine.cancel(str(number))
                case Left(error=error) if not isinstance(error, CancelledError):
                    raise error
    return states


def write_states(path: Path, states: States) -> None:
    """Write the states in fp16, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".part")
    with half.open("wb") as file:
        np.savez(file, allow_pickle=False, **{str(k): latent.astype(np.float16) for k, latent in states.items()})
    os.replace(half, path)


def read_states(path: Path) -> States:
    with np.load(path) as file:
        return {int(k): file[k].astype(np.float32) for k in file.files}
