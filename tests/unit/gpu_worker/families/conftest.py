"""A tiny random checkpoint of every real family, saved once, and loaded once per batch mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Finished, Joined, Left
from services.gpu_worker.engine.rows import Task
from services.gpu_worker.families import load_family
from shared.domain.types import Size
from shared.models import find_card
from tests import tiny_families

STEPS = 5
SAVED: dict[str, tuple[str, dict[str, Any]]] = {
    "sdxl": ("sdxl", {}),
    "sd3": ("sd3", {}),
    "sd3-without-t5": ("sd3", {"third_encoder": False}),
    "flux-dev": ("flux", {}),
    "flux-schnell": ("flux", {"guidance_embeds": False}),
    "sana": ("sana", {}),
}
"""By test name: which of tiny_families, and its choices."""
CLIPS: dict[str, tuple[str, dict[str, Any]]] = {
    "animatediff": ("animatediff", {}),
    "text-to-video": ("text_to_video", {}),
}
"""Families that generate clips, likewise."""
ROTARY = {"snr_shift_scale": 1.0, "use_rotary_positional_embeddings": True}
TIMED: dict[str, tuple[str, dict[str, Any]]] = {
    "wan": ("wan", {}),
    "ltx": ("ltx", {}),
    "cogvideox-2b": ("cogvideox", {}),
    "cogvideox-5b": ("cogvideox", ROTARY),
    "cogvideox-1.5": ("cogvideox", {**ROTARY, "patch_size_t": 2, "patch_bias": False, "sample_height": 24}),
}
"""Families of clips whose VAE compresses time, likewise."""

LoadTiny = Callable[..., Any]
"""(name, batch_invariant=0, offload="none") → the loaded family."""


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folders: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in folders:
            family, choices = (SAVED | CLIPS | TIMED)[name]
            folders[name] = tiny_families.save(tmp_path_factory.mktemp(name) / name, family, **choices)
        return folders[name]

    return folder


@pytest.fixture(scope="session")
def tiny_family(saved: Callable[[str], Path]) -> LoadTiny:
    loaded: dict[tuple[str, int, str], Any] = {}

    def family(name: str, batch_invariant: int = 0, offload: str = "none") -> Any:
        key = name, batch_invariant, offload
        if key not in loaded:
            card = find_card(str(saved(name)))
            loaded[key] = load_family(card, batch_invariant=batch_invariant, offload=offload)
        return loaded[key]

    return family


def a_task(name: str = "a", **changes: Any) -> Task:
    plain = {"model": "m", "prompt": "a red fox", "size": Size(64, 32), "steps": STEPS, "guidance": 3.5, "seed": 7}
    return Task(id=name, **{**plain, **changes})


def drawn(family: Any, *tasks: Task, at: tuple[int, ...] = ()) -> dict[str, Finished]:
    """All of them in one engine; task i is submitted before step at[i] (0 where `at` is short). Clips share
    the batch."""
    engine = Engine({"m": family}, max_rows=64)
    waiting = {task.id: (at[i] if i < len(at) else 0, task) for i, task in enumerate(tasks)}
    done: dict[str, Finished] = {}
    step = 0
    while waiting or not engine.idle:
        for name in [name for name, (when, _) in waiting.items() if when <= step]:
            engine.submit(waiting.pop(name)[1])
        for event in engine.step():
            if isinstance(event, Left):
                raise event.error
            if isinstance(event, Finished):
                done[event.id] = event
        step += 1
    return done


def warnings_of(family: Any, task: Task) -> tuple[str, ...]:
    engine = Engine({"m": family})
    engine.submit(task)
    return next(event.warnings for event in engine.step() if isinstance(event, Joined))


def a_picture(size: Size, seed: int = 3) -> np.ndarray:
    """Smooth colours, as a picture has them."""
    coarse = torch.rand((1, 3, 4, 4), generator=torch.Generator().manual_seed(seed))
    smooth = torch.nn.functional.interpolate(coarse, size=(size.height, size.width), mode="bicubic")
    return (smooth[0].clamp(0, 1) * 255).byte().permute(1, 2, 0).contiguous().numpy()
