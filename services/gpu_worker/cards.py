"""The served models' cards as they compute on this worker's device."""

from __future__ import annotations

from shared.devices import placed
from shared.models import ModelCard, served_cards
from shared.settings import Settings
from shared.telemetry import log


def cards_here(settings: Settings, *, alone: bool) -> dict[str, ModelCard]:
    """By name, the large model's first. alone: every service is in this process, and knows this device.

    Other processes cannot see it: where `dtype` and `device` are left to it, and it takes another dtype than the card's
    own, they look for latents that no worker leaves (design §2, Compatibility), and that is said here.
    """
    cards = served_cards(placed(settings))
    if alone:
        return cards
    for name, card in served_cards(settings).items():
        if card.dtype != (here := cards[name].dtype):
            log("gpu_worker").warning(
                "latents of another dtype than others look for", model=name, dtype=here, looked_for=card.dtype,
                rule="device: set it for all services (AFTERIMAGE_DEVICE=cpu), or dtype",
            )  # fmt: skip
    return cards
