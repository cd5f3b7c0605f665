"""The first forward of a process is slow; it is run before the first request, on nobody's prompt."""

from __future__ import annotations

from services.gpu_worker.engine import Engine
from services.gpu_worker.families import Family
from services.gpu_worker.rows import Task


def warm_up(family: Family) -> None:
    """Two steps, a preview and a picture of the model's default size."""
    card = family.card
    engine = Engine({card.name: family}, tell_every_s=0.0)
    guidance = card.default_guidance
    engine.submit(Task("warm", card.name, "", card.default_size, 2, guidance, seed=0, preview=True))
    while not engine.idle:
        engine.step()
