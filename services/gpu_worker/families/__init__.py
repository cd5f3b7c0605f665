"""Model families over stock diffusers components. A family's module is imported when a card names it."""

from __future__ import annotations

from importlib import import_module

import torch

from services.gpu_worker.engine.family import Family
from services.gpu_worker.engine.layout_choice import LayoutChoice
from shared.domain.errors import ModelError
from shared.models import ModelCard
from shared.models.card_lookup import VIDEO
from shared.runtime.telemetry import log

__all__ = ["MODULES", "Family", "layout_of", "load_family", "mixed_layout"]

MODULES = {
    name: f"services.gpu_worker.families.{name}"
    for name in ("unet", "sd3", "flux", "sana", "animatediff", "text_to_video", "wan", "ltx", "cogvideox", "noop")
}
"""Module path of each family."""
MIXED = {"patches": ("unet",), "packed": ("sd3", "flux", "sana")}
"""Families that run all sizes in one batch, by layout."""
LAYOUTS = {"groups": tuple(MODULES), **MIXED, "auto": tuple(family for names in MIXED.values() for family in names)}
"""Families that take each value of the setting `layout`."""


def layout_of(card: ModelCard, layout: str, batch_invariant: int = 0) -> str:
    """Return the layout that a model runs with under this setting."""
    return "groups" if batch_invariant or card.family not in LAYOUTS[layout] else layout


def mixed_layout(card: ModelCard) -> str:
    """Return the layout that runs all sizes in one batch of this model; empty where there is none."""
    return next((layout for layout, families in MIXED.items() if card.family in families), "")


def load_family(
    card: ModelCard,
    *,
    device: str = "cpu",
    batch_invariant: int = 0,
    prompts_kept: int = 512,
    offload: str = "none",
    layout: str = "groups",
    patch_px: int = 0,
    choice: LayoutChoice | None = None,
) -> Family:
    """Load the card's weights (safetensors only) to run on `device`; `offload`: see families/offload.py.

    layout, patch_px, choice: see PipelineFamily; a family that does not take the layout runs one batch per size, and
    logs a warning, unless it is the video model. Raises ModelError when the family is unknown, or when the weights are
    missing or of another family.
    """
    if card.family not in MODULES:
        raise ModelError(f"model {card.name!r}: family must be one of {', '.join(MODULES)} (got {card.family!r})")
    load = import_module(MODULES[card.family]).load
    if layout != layout_of(card, layout, batch_invariant):
        got = f"batch_invariant {batch_invariant}, family {card.family}"
        rule = f"layout: {layout} needs batch_invariant 0 and a family of {', '.join(LAYOUTS[layout])} (got {got})"
        say = log("gpu_worker").info if card.role == VIDEO else log("gpu_worker").warning  # clips keep groups anyway
        say("one batch per size", model=card.name, rule=rule, runs="groups")
        layout = "groups"
    return load(
        card,
        device=torch.device(device),
        batch_invariant=batch_invariant,
        prompts_kept=prompts_kept,
        offload=offload,
        layout=layout,
        patch_px=patch_px,
        choice=choice,
    )
