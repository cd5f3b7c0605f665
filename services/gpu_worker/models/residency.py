"""The models of this worker: their cards on its device, and those it has loaded, as many as its memory holds."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Mapping

import torch

from services.gpu_worker.engine.family import Family
from shared.models import ModelCard, served_cards
from shared.models.devices import placed
from shared.models.memory import estimate
from shared.runtime.settings import Settings
from shared.runtime.telemetry import log


class Resident:
    """limit_bytes: of the weights together, 0 for none; whoever was used longest ago goes first."""

    def __init__(
        self, cards: Mapping[str, ModelCard], load: Callable[[ModelCard], Family], *, limit_bytes: int = 0
    ) -> None:
        self.cards, self._load, self._limit = cards, load, limit_bytes
        self.families: dict[str, Family] = {}
        """Loaded ones by name, oldest use first."""
        self._bytes: dict[str, int] = {}

    def fits(self, name: str) -> bool:
        """Whether it is here, or can be beside all that is."""
        if name in self.families or not self._limit:
            return True
        needed = self._needed(name)
        return bool(needed) and self._taken + needed <= self._limit

    async def get(self, name: str) -> Family:
        """The model, loaded on a thread of its own; before that others leave until it fits. Raises what loading does.

        A model whose size nobody knows yet is loaded alone.
        """
        while not self.fits(name) and self.families:
            self._drop(next(iter(self.families)))
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
