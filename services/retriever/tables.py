"""The K tables in force, one per model, read again now and then so that a fresh profile counts without a restart."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from shared.errors import AfterimageError
from shared.models.card import ModelCard, find_card
from shared.models.k_table import KTable, Profiles, load_k_table
from shared.telemetry import log

REREAD_S = 30.0


class Tables:
    """Cards and tables by model name."""

    def __init__(self, profiles: Profiles, alpha: float, dtype: str) -> None:
        self._profiles = profiles
        self._alpha = alpha
        self._dtype = dtype  # part of every latent's compatibility key, as the workers compute
        self._known: dict[str, tuple[ModelCard, KTable]] = {}

    async def add(self, name_or_path: str) -> tuple[ModelCard, KTable]:
        """Reads a model's card and table; hashing its weights happens on another thread. ModelError when unknown."""
        card = replace(find_card(name_or_path), dtype=self._dtype)
        await asyncio.to_thread(lambda: (card.weights_hash, card.scheduler_config))
        self._known[card.name] = card, await load_k_table(self._profiles, card, self._alpha)
        return self._known[card.name]

    async def of(self, model: str) -> tuple[ModelCard, KTable]:
        return self._known.get(model) or await self.add(model)

    async def keep_fresh(self) -> None:
        """Never ends."""
        while True:
            await asyncio.sleep(REREAD_S)
            for card, _ in list(self._known.values()):
                try:
                    self._known[card.name] = card, await load_k_table(self._profiles, card, self._alpha)
                except (AfterimageError, ValueError) as error:  # the table in hand stays in force
                    log("retriever").warning("K table not read again", model=card.name, error=str(error))
