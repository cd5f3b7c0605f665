"""How fast a model's steps are here, measured before anyone asks (MoDM §5.3: profiled throughput)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from services.gpu_worker.engine import Engine
from services.gpu_worker.events import BatchRan
from services.gpu_worker.families import Family
from services.gpu_worker.rows import Task

STEPS = 4
"""The first of them is warmer for the second; the median of the others counts."""


def measure(family: Family, batches: Sequence[int]) -> dict[int, float]:
    """Seconds of one step by rows in the batch, at the model's default size and guidance; on the calling thread."""
    return {rows: _step_s(family, rows) for rows in sorted(set(batches))}


def _step_s(family: Family, rows: int) -> float:
    card, engine = family.card, Engine({family.card.name: family}, max_rows=rows, tell_every_s=float("inf"))
    task = Task("", card.name, "", card.default_size, max(card.default_steps, STEPS), card.default_guidance, seed=0)
    for row in range(rows):
        engine.submit(replace(task, id=f"measured {row}", seed=row))
    ran = [event for _ in range(STEPS) for event in engine.step() if isinstance(event, BatchRan)]
    return median(event.seconds for event in ran[1:])
