"""Seconds of one step of a batch in several layouts, in turn: shared by the benchmarks of layouts."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from services.gpu_worker.engine.layout_choice import Ran
from services.gpu_worker.engine.patches.auto_layout import Choice
from services.gpu_worker.engine.row_start import make_row
from services.gpu_worker.engine.rows import Task
from services.gpu_worker.families.pipeline import PipelineFamily
from shared.domain.types import Size
from shared.models.step_regression import Mix


@dataclass(frozen=True)
class Always:
    """One layout for every step (a Choice of AutoLayout)."""

    mixed: bool

    def together(self, mix: Mix) -> bool:
        return self.mixed

    def took(self, ran: Ran) -> None:
        pass


GROUPS, MIXED = Always(False), Always(True)


def tasks_of(family: PipelineFamily, sizes: Sequence[Size], guidance: float | None = None) -> list[Task]:
    """Return one request of each of these sizes; guidance: the card's unless given."""
    card = family.card
    wanted = card.default_guidance if guidance is None else guidance
    return [
        Task(str(number), card.name, "random", size, card.default_steps, wanted, seed=number)
        for number, size in enumerate(sizes)
    ]


def equal_shares(sizes: Sequence[Size], count: int) -> list[Size]:
    """Return `count` sizes, each equally often."""
    return [sizes[number % len(sizes)] for number in range(count)]


def in_turn(
    family: PipelineFamily,
    tasks: Sequence[Task],
    arms: Mapping[str, Choice],
    rounds: int,
    clock: Callable[[], float],
    draw: random.Random,
) -> dict[str, list[float]]:
    """Return the seconds of the first step of these tasks, `rounds` times for each arm after one more.

    Each round runs all arms in random order. The family was loaded with layout=auto.
    """
    auto = family.auto
    assert auto is not None, "load the family with layout=auto"
    rows = [make_row(family, task) for task in tasks]
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    before = auto.choice
    try:
        for number in range(rounds + 1):
            for name in draw.sample(sorted(arms), len(arms)):
                auto.choice = arms[name]
                begun = clock()
                family.step(rows)
                waited(family.device)
                if number:
                    seconds[name].append(clock() - begun)
    finally:
        auto.choice = before
    return seconds


def waited(device: Any) -> None:
    """Wait for CUDA kernels, which run asynchronously."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
