"""Measure mixes of sizes in both layouts, step by step in turn, and fit the costs for `layout=auto`."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.text import Text

from services.cli.profiles.mixes import fit, random_tasks
from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import BatchRan
from services.gpu_worker.engine.layout_choice import Ran
from services.gpu_worker.engine.passes import passes_of, resolution_of
from services.gpu_worker.engine.rows import Task
from services.gpu_worker.families import mixed_layout
from services.gpu_worker.families.pipeline import PipelineFamily
from services.gpu_worker.models.layout_profile import device_name
from shared.models import step_regression
from shared.models.layout_costs import FILE, LayoutCosts, Weights, costs_to_json, groups_terms, mixed_terms
from shared.models.step_regression import Mix, mix_of, regression_to_json
from shared.runtime.progress import shown

STEPS = 4
"""Steps of a mix in each layout; the first is dropped, and the median of the others counts."""


@dataclass(frozen=True)
class BothWays:
    """Seconds of a step of a mix in each layout; both of groups where one batch of all sizes is not possible."""

    mix: Mix
    groups_s: float
    mixed_s: float


class InTurn:
    """Every second step in one batch, for a measurement (Choice of AutoLayout)."""

    def __init__(self) -> None:
        self.ran: list[Ran] = []

    def together(self, mix: Mix) -> bool:
        return len(self.ran) % 2 == 1

    def took(self, ran: Ran) -> None:
        self.ran.append(ran)


def measure_both(family: PipelineFamily, tasks: Sequence[Task], clock: Callable[[], float]) -> BothWays:
    """Return the median seconds of a step that runs all of these tasks, in both layouts. The family was loaded with
    layout=auto."""
    if family.auto is None:
        raise ValueError(f"model {family.card.name!r}: only a family loaded with layout=auto has two layouts")
    before, family.auto.choice = family.auto.choice, InTurn()
    try:
        engine = Engine({family.card.name: family}, max_rows=len(tasks), tell_every_s=float("inf"), clock=clock)
        for task in tasks:
            engine.submit(replace(task, steps=max(task.steps, 2 * STEPS)))
        seconds = [event.seconds for _ in range(2 * STEPS) for event in engine.step() if isinstance(event, BatchRan)]
    finally:
        family.auto.choice = before
    mix = mix_of((resolution_of(task), passes_of(family, task)) for task in tasks)
    return BothWays(mix, median(seconds[2::2]), median(seconds[3::2]))


def fit_costs(measured: Sequence[BothWays], layout: str, device: str, seed: int = 0) -> LayoutCosts | None:
    """Fit the costs on mixes of several sizes; a fifth of them, held out, measures the error. None where fewer than two
    mixes have several sizes."""
    several = [one for one in measured if len(one.mix) > 1]
    if len(several) < 2:
        return None
    shuffled = random.Random(seed).sample(several, len(several))
    at = min(round(0.8 * len(several)), len(several) - 1)
    trained, held_out = shuffled[:at], shuffled[at:]
    groups = _weights([groups_terms(one.mix) for one in trained], [one.groups_s for one in trained])
    mixed = _weights([mixed_terms(one.mix) for one in trained], [one.mixed_s for one in trained])
    won = sum(one.groups_s <= one.mixed_s for one in several) / len(several)
    found = LayoutCosts(layout, device, groups, mixed, error=0.0, groups_won=won)
    errors = []
    for one in held_out:
        ratio = one.mixed_s / one.groups_s
        errors.append(abs((found.ratio(one.mix) or 1.0) - ratio) / ratio)
    return replace(found, error=float(np.quantile(errors, 0.95)))


def _weights(terms: Sequence[list[float]], seconds: Sequence[float]) -> Weights:
    """Return the weights ≥ 0 with the least squares of relative errors."""
    from sklearn.linear_model import LinearRegression

    inputs: npt.NDArray[np.float64] = np.array(terms)
    scale = inputs.mean(axis=0)
    scale[scale == 0] = 1.0
    relative = inputs / scale / np.array(seconds)[:, None]
    model = LinearRegression(positive=True, fit_intercept=False).fit(relative, np.ones(len(seconds)))
    return tuple((model.coef_ / scale).tolist())


def profile_layouts(
    family: PipelineFamily, count: int, max_rows: int, out: Path, console: Console
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Measure mixes in both layouts; write and return the costs (None: too few mixes of several sizes), and the
    regression of the faster layout's seconds for scheduler=slack, as the catalog's JSON values."""
    draw, measured = random.Random(0), []
    with shown(console) as bar, torch.inference_mode():
        advance = bar("mixes of sizes, in both layouts", count)
        for _ in range(count):
            measured.append(measure_both(family, random_tasks(family.card, max_rows, draw), time.monotonic))
            advance(1)
    found = fit([(one.mix, min(one.groups_s, one.mixed_s)) for one in measured], "auto")
    regression = _written(out / step_regression.FILE, regression_to_json(found))
    costs = fit_costs(measured, mixed_layout(family.card), device_name(family.device))
    if costs is None:
        console.print(Text("no costs of layouts: too few mixes have several sizes", style="yellow"))
        return None, regression
    said = f"groups faster in {costs.groups_won:.0%} of the mixes; the ratio of the two times is within"
    console.print(Text(f"Layouts: {said} {costs.error:.0%} (95 % of mixes)"))
    return _written(out / FILE, costs_to_json(costs)), regression


def _written(path: Path, value: dict[str, Any]) -> dict[str, Any]:
    path.write_text(json.dumps(value) + "\n", encoding="utf-8")
    return value
