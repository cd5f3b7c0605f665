"""Measure the seconds of a step for random mixes of sizes, and fit the regression of `afterimage profile --mixes`
(PatchedServe §6.1.2)."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.text import Text

from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import BatchRan
from services.gpu_worker.engine.passes import passes_of, resolution_of
from services.gpu_worker.engine.rows import Task
from services.gpu_worker.families import Family, layout_of
from shared.domain.types import Size
from shared.models import ModelCard
from shared.models.step_regression import (
    FILE,
    Mix,
    Resolution,
    StepRegression,
    features,
    mix_of,
    regression_to_json,
)
from shared.runtime.progress import shown

STEPS = 4
"""Steps per mix; the first is dropped, and the median of the others counts."""
GUIDED = 0.75
"""Share of requests with the card's guidance; the others have one pass."""
TRAINED = 0.8
"""Share of the mixes that the regression is fitted on, as in the paper; the others measure its error."""
PENALTY, TUBE, WIDTH = 10.0, 0.01, 0.1
"""C and ε of the regression, for seconds as multiples of their mean, and its kernel's γ times the features."""

Measured = tuple[Mix, float]
Clock = Callable[[], float]


def random_tasks(card: ModelCard, max_rows: int, draw: random.Random) -> list[Task]:
    """Return images of a random mix: 1 to `max_rows` requests over some of the card's sizes."""
    sizes = profiled_sizes(card)
    present = draw.sample(sizes, draw.randint(1, len(sizes)))
    steps, frames = max(card.default_steps, STEPS), card.frames.default
    plain = Task("", card.name, "mixes", card.default_size, steps, card.default_guidance, seed=0, frames=frames)
    return [
        replace(
            plain,
            id=str(number),
            size=draw.choice(present),
            guidance=card.default_guidance if draw.random() < GUIDED else 1.0,
        )
        for number in range(draw.randint(1, max(max_rows // frames, 1)))
    ]


def profiled_sizes(card: ModelCard) -> list[Size]:
    """Return the card's sizes; of a range, half, three quarters and the whole of the default size, as far as the range
    has them (512, 768 and 1024 pixels, as in PatchedServe §8)."""
    if card.sizes.sizes:
        return list(card.sizes.sizes)
    width, height = card.default_size.width, card.default_size.height
    found = [Size(width * quarters // 4, height * quarters // 4) for quarters in (2, 3, 4)]
    return [size for size in found if card.sizes.allows(size)] or [card.default_size]


def measure_mixes(
    family: Family, count: int, max_rows: int, seed: int = 0, clock: Clock = time.monotonic
) -> Iterator[Measured]:
    """Yield `count` random mixes with the median seconds of one of their steps."""
    draw = random.Random(seed)
    for _ in range(count):
        yield measure_tasks(family, random_tasks(family.card, max_rows, draw), clock)


def measure_tasks(family: Family, tasks: Sequence[Task], clock: Clock = time.monotonic) -> Measured:
    """Return the mix of these tasks, and the median seconds of a step that runs them all."""
    rows = sum(task.frames for task in tasks)
    engine = Engine({family.card.name: family}, max_rows=rows, tell_every_s=float("inf"), clock=clock)
    for task in tasks:
        engine.submit(task)
    seconds = [event.seconds for _ in range(STEPS) for event in engine.step() if isinstance(event, BatchRan)]
    mix = mix_of((resolution_of(task), passes_of(family, task)) for task in tasks)
    return mix, median(seconds[1:])


def fit(measured: Sequence[Measured], layout: str, seed: int = 0) -> StepRegression:
    """Fit a support vector regression on LEAST_MIXES or more, and measure its relative error on those held out."""
    from sklearn.svm import SVR

    resolutions = resolutions_of(measured)
    trained, held_out = split(measured, seed)
    inputs = np.array([features(mix, resolutions) for mix, _ in trained])
    mean, scale = inputs.mean(axis=0), np.where(inputs.std(axis=0) > 0, inputs.std(axis=0), 1.0)
    scaled, gamma = (inputs - mean) / scale, WIDTH / inputs.shape[1]
    outputs = np.array([seconds for _, seconds in trained])
    unit = outputs.mean()
    model = SVR(C=PENALTY, epsilon=TUBE, gamma=gamma).fit(scaled, outputs / unit)
    most = max(sum(count for _, count in mix) for mix, _ in measured)
    weights, intercept = unit * model.dual_coef_[0], float(unit * model.intercept_[0])
    found = StepRegression(
        resolutions, most, layout, mean, scale, model.support_vectors_, weights, gamma, intercept, error=0.0
    )
    return replace(found, error=float(np.quantile(relative_errors(found, held_out), 0.95)))


def profile_mixes(
    family: Family, count: int, max_rows: int, layout: str, out: Path, console: Console
) -> dict[str, Any]:
    """Measure mixes and fit the regression, write it to `out`, and return it as the catalog's JSON value."""
    with shown(console) as bar, torch.inference_mode():
        advance, measured = bar("mixes of sizes", count), []
        for one in measure_mixes(family, count, max_rows):
            measured.append(one)
            advance(1)
    found = fit(measured, layout_of(family.card, layout))
    value = regression_to_json(found)
    (out / FILE).write_text(json.dumps(value) + "\n", encoding="utf-8")
    console.print(Text(f"Step times of {count} mixes: 95 % of predictions are within {found.error:.0%}"))
    return value


def split(measured: Sequence[Measured], seed: int = 0) -> tuple[list[Measured], list[Measured]]:
    """Return the mixes to fit on, and those held out."""
    shuffled = random.Random(seed).sample(list(measured), len(measured))
    at = round(TRAINED * len(shuffled))
    return shuffled[:at], shuffled[at:]


def relative_errors(found: StepRegression, measured: Sequence[Measured]) -> list[float]:
    """Return |predicted − measured| / measured of each mix."""
    predicted = [(found.seconds(mix), seconds) for mix, seconds in measured]
    return [abs(own - seconds) / seconds for own, seconds in predicted if own is not None]


def resolutions_of(measured: Sequence[Measured]) -> tuple[Resolution, ...]:
    """Return every resolution of these mixes, ascending."""
    return tuple(sorted({one for mix, _ in measured for one, _ in mix}))
