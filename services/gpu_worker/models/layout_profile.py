"""What is known about the layouts' times before the first step here (`layout=auto`)."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from services.gpu_worker.engine.layout_choice import LayoutChoice
from services.gpu_worker.families import layout_of, mixed_layout
from shared.domain.errors import AfterimageError
from shared.models import ModelCard
from shared.models.devices import chosen_device
from shared.models.k_table import Profiles
from shared.models.layout_costs import load_costs
from shared.runtime.settings import Settings
from shared.runtime.telemetry import log


async def choices_of(settings: Settings, profiles: Profiles, cards: Iterable[ModelCard]) -> dict[str, LayoutChoice]:
    """Return the choice of each model that runs with layout=auto; one that begins with groups where no profile of this
    device was found."""
    device = device_name(torch.device(chosen_device(settings.device)))
    found = {}
    for card in cards:
        if layout_of(card, settings.layout, settings.batch_invariant) == "auto":
            found[card.name] = await _choice(profiles, card, device)
    return found


async def _choice(profiles: Profiles, card: ModelCard, device: str) -> LayoutChoice:
    layout = mixed_layout(card)
    try:
        costs = await load_costs(profiles, card, layout, device)
    except AfterimageError as error:  # trials of single steps measure the ratio
        log("gpu_worker").warning("measured costs of layouts not read", model=card.name, error=str(error))
        costs = None
    unmeasured = {"begins": "groups", "rule": f"no measured costs; single steps try {layout}"}
    said = {"groups_won": round(costs.groups_won, 2)} if costs else unmeasured
    log("gpu_worker").info("layout chosen by times", model=card.name, between=f"groups, {layout}", **said)
    return LayoutChoice(costs.ratio, costs.error) if costs else LayoutChoice()


def device_name(device: torch.device) -> str:
    """Return `cpu`, or the GPU's name; seconds of different devices do not compare."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
