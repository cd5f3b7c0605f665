"""A model's first steps on this device, before any request: load it, warm it up, and measure its step time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import BatchRan
from services.gpu_worker.engine.family import Family
from services.gpu_worker.engine.layout_choice import LayoutChoice
from services.gpu_worker.engine.rows import Task
from services.gpu_worker.families import load_family
from shared.models import ModelCard
from shared.models.devices import chosen_device
from shared.runtime.settings import Settings

STEPS = 4
"""Steps per measurement. The first step is a warm-up and is dropped; the result is the median of the others."""


def load_warm(card: ModelCard, settings: Settings, choices: Mapping[str, LayoutChoice] | None = None) -> Family:
    """Load the model on its device and warm it up. Call this on a separate thread, because loading takes seconds.

    choices: choice of the layout by model, for layout=auto.
    """
    family = load_family(
        card,
        device=chosen_device(settings.device),
        batch_invariant=settings.batch_invariant,
        offload=settings.offload,
        layout=settings.layout,
        patch_px=settings.patch_px,
        choice=(choices or {}).get(card.name),
    )
    warm_up(family)
    return family


def warm_up(family: Family) -> None:
    """Run two steps, a preview and a decode at the model's default size and length."""
    card = family.card
    engine = Engine({card.name: family}, tell_every_s=0.0)
    guidance = card.default_guidance
    frames = card.frames.default
    engine.submit(Task("warm", card.name, "", card.default_size, 2, guidance, seed=0, frames=frames, preview=True))
    while not engine.idle:
        engine.step()


def measure(family: Family, batches: Sequence[int]) -> dict[int, float]:
    """Measure the seconds of one step by rows in the batch, at the model's default size, length and guidance, on the
    calling thread (MoDM §5.3: profiled throughput)."""
    return {rows: _step_s(family, rows) for rows in sorted(set(batches))}


def _step_s(family: Family, rows: int) -> float:
    card, frames = family.card, family.card.frames.default
    engine = Engine({card.name: family}, max_rows=rows * frames, tell_every_s=float("inf"))
    steps = max(card.default_steps, STEPS)
    task = Task("", card.name, "", card.default_size, steps, card.default_guidance, seed=0, frames=frames)
    for row in range(rows):
        engine.submit(replace(task, id=f"measured {row}", seed=row))
    ran = [event for _ in range(STEPS) for event in engine.step() if isinstance(event, BatchRan)]
    return median(event.seconds for event in ran[1:])
