"""Model families over stock diffusers components. A family's module is imported when a card names it."""

from __future__ import annotations

from importlib import import_module

import torch

from services.gpu_worker.engine.family import Family
from shared.domain.errors import ModelError
from shared.models import ModelCard

__all__ = ["MODULES", "Family", "load_family"]

MODULES = {
    name: f"services.gpu_worker.families.{name}"
    for name in ("unet", "sd3", "flux", "sana", "animatediff", "text_to_video", "wan", "ltx", "cogvideox", "noop")
}
"""Module path of each family."""


def load_family(
    card: ModelCard,
    *,
    device: str = "cpu",
    batch_invariant: int = 0,
    prompts_kept: int = 512,
    offload: str = "none",
) -> Family:
    """Load the card's weights (safetensors only) to run on `device`; `offload`: see families/offload.py.

    Raises ModelError when the family is unknown, or when the weights are missing or of another family.
    """
    if card.family not in MODULES:
        raise ModelError(f"model {card.name!r}: family must be one of {', '.join(MODULES)} (got {card.family!r})")
    load = import_module(MODULES[card.family]).load
    return load(
        card,
        device=torch.device(device),
        batch_invariant=batch_invariant,
        prompts_kept=prompts_kept,
        offload=offload,
    )
