"""The models of this worker: their cards, and the loaded models within the memory limit."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Mapping

import torch

from services.gpu_worker.engine.family import Family
from shared.models import ModelCard, served_cards
from shared.models.card_lookup import VIDEO
from shared.models.devices import placed
from shared.models.memory import estimate
from shared.runtime.settings import Settings
from shared.runtime.telemetry import log


class Resident:
    """Loaded models up to `limit_bytes` of weights in total (0: no limit); the least recently used is unloaded
    first, the video model last: no switch loads it again."""

    def __init__(
        self, cards: Mapping[str, ModelCard], load: Callable[[ModelCard], Family], *, limit_bytes: int = 0
    ) -> None:
        self.cards, self._load, self._limit = cards, load, limit_bytes
        self.families: dict[str, Family] = {}
        """Loaded models by name, oldest use first."""
        self._bytes: dict[str, int] = {}

    def fits(self, name: str) -> bool:
        """Return whether the model is loaded, or can be loaded without unloading another one."""
        if name in self.families or not self._limit:
            return True
        needed = self._needed(name)
        return bool(needed) and self._taken + needed <= self._limit

    async def get(self, name: str) -> Family:
        """Return the model, loaded on a separate thread if needed; others are unloaded until it fits. Raises what
        loading raises.

        A model of unknown size is loaded alone.
        """
        while not self.fits(name) and self.families:
            self._drop(min(self.families, key=lambda loaded: self.cards[loaded].role == VIDEO))
        if name not in self.families:
            self.families[name] = await asyncio.to_thread(self._load, self.cards[name])
            self._bytes[name] = self.families[name].memory_bytes
        self.families[name] = self.families.pop(name)
        return self.families[name]

    @property
    def _taken(self) -> int:
        return sum(self._bytes[name] for name in self.families)

    def _needed(self, name: str) -> int:
        return self._bytes.get(name) or estimate(self.cards[name], rows=1).weights

    def _drop(self, name: str) -> None:
        log("gpu_worker").info("model unloaded", model=name)
        del self.families[name]
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def placed_cards(settings: Settings, *, alone: bool) -> dict[str, ModelCard]:
    """Return the cards by name, the large model's first. alone: all services run in this process, and so know this
    device.

    Services in other processes do not know this worker's device. If `dtype` and `device` are unset, the device may need
    another dtype than the card's. Those services then look for latents that no worker stores (docs/architecture.md,
    Nouns), and this function logs a warning.
    """
    cards = served_cards(placed(settings))
    if alone:
        return cards
    for name, card in served_cards(settings).items():
        if card.dtype != (here := cards[name].dtype):
            log("gpu_worker").warning(
                "latents stored in another dtype than other services look up",
                model=name, dtype=here, looked_for=card.dtype,
                rule="device: set it for all services (AFTERIMAGE_DEVICE=cpu), or dtype",
            )  # fmt: skip
    return cards
