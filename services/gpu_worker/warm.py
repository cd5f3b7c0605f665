"""The first forward of a process is slow; it is run before the first request, on nobody's prompt."""

from __future__ import annotations

from services.gpu_worker.engine import Engine
from services.gpu_worker.families import Family, load_family
from services.gpu_worker.rows import Task
from shared.devices import chosen_device
from shared.models import ModelCard
from shared.settings import Settings


def load_warm(card: ModelCard, settings: Settings) -> Family:
    """The model on its device, warm; to be run on a thread of its own, because weights take seconds."""
    device, padded = chosen_device(settings.device), settings.batch_invariant
    family = load_family(card, device=device, batch_invariant=padded, offload=settings.offload)
    warm_up(family)
    return family


def warm_up(family: Family) -> None:
    """Two steps, a preview and a picture of the model's default size."""
    card = family.card
    engine = Engine({card.name: family}, tell_every_s=0.0)
    guidance = card.default_guidance
    engine.submit(Task("warm", card.name, "", card.default_size, 2, guidance, seed=0, preview=True))
    while not engine.idle:
        engine.step()
