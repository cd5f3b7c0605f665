"""What is known of each model: its card, its K tables and its latency; tables are read again now and then, so that a
fresh profile counts without a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from services.retriever.pictures import TableOf
from shared.domain.errors import AfterimageError
from shared.models.card import ModelCard
from shared.models.card_lookup import card_for, served_cards
from shared.models.k_table import MODM, EncoderId, KTable, Profiles
from shared.models.latency import Latency, load_latencies
from shared.models.tables_in_force import (
    ImageTable,
    image_table,
    latent_table,
    load_image_tables,
    load_k_tables,
    measured_on,
    profile_command,
)
from shared.runtime.settings import Settings
from shared.runtime.telemetry import log

REREAD_S = 30.0


@dataclass(frozen=True)
class Known:
    """A model and what was measured of it."""

    card: ModelCard
    given: str
    """The name of the model in the settings or the request."""
    latents: tuple[KTable, ...]
    """Those that may count, best first."""
    pictures: tuple[KTable, ...]
    """One for each model whose pictures it was measured on."""
    latencies: tuple[Latency, ...]
    """Measured here, then shipped."""

    def latent_table(self, encoder: EncoderId, settings: Settings) -> tuple[KTable | None, tuple[str, ...]]:
        """The table in force for latents of its own, and what there is to say about it."""
        command = profile_command(self.given, settings.encoder, settings.k_table_alpha)
        return latent_table(self.latents, self.card, encoder, settings.k_table_alpha, command)

    def table_of(self, encoder: EncoderId, settings: Settings) -> TableOf:
        """What this model may do with pictures, by who drew them."""

        def of(model: str, weights: str) -> ImageTable:
            command = profile_command(self.given, settings.encoder, settings.image_k_table_alpha, model)
            return image_table(self.pictures, self.card, (model, weights), encoder, command)

        return of

    def may_refine(self, encoder: EncoderId, sources: Iterable[ModelCard]) -> bool:
        """Whether it could start from any picture of `sources` at all, by similarities of this encoder."""
        return MODM.fits(encoder) or any(
            table.fits(encoder) for table in measured_on(self.pictures, self.card, sources)
        )


class Tables:
    """Models by name: those that are served, and whoever else is asked for."""

    def __init__(self, profiles: Profiles, settings: Settings) -> None:
        self._profiles, self._settings = profiles, settings
        self._known: dict[str, Known] = {}
        self._served: dict[str, ModelCard] = {}

    async def open(self) -> None:
        """Reads the models that these settings serve. ModelError when one is unknown."""
        self._served = await asyncio.to_thread(served_cards, self._settings)
        given = [self._settings.large, *filter(None, (part.strip() for part in self._settings.small.split(",")))]
        for card, name in zip(self._served.values(), given, strict=True):
            await self._read(card, name)

    @property
    def served(self) -> list[Known]:
        """The large model, then the small ones."""
        return [self._known[name] for name in self._served]

    async def of(self, model: str) -> Known:
        """ModelError when unknown."""
        if model not in self._known:
            # its dtype is part of every latent's compatibility key, as the workers compute
            card = await asyncio.to_thread(card_for, model, self._settings)  # the hub may be asked
            return await self._read(card, model)
        return self._known[model]

    async def _read(self, card: ModelCard, given: str) -> Known:
        await asyncio.to_thread(lambda: (card.weights_hash, card.scheduler_config))  # hashing takes a moment
        settings = self._settings
        sources = dict.fromkeys((*self._served, card.name))
        self._known[card.name] = known = Known(
            card,
            given,
            await load_k_tables(self._profiles, card, settings.k_table_alpha),
            tuple(await load_image_tables(self._profiles, card, list(sources), settings.image_k_table_alpha)),
            await load_latencies(self._profiles, card),
        )
        return known

    async def keep_fresh(self) -> None:
        """Never ends."""
        while True:
            await asyncio.sleep(REREAD_S)
            await self._reread(list(self._known.values()))

    async def _reread(self, known: Iterable[Known]) -> None:
        for one in known:
            try:
                await self._read(one.card, one.given)
            except (AfterimageError, ValueError) as error:  # the tables in hand stay in force
                log("retriever").warning("K tables not read again", model=one.card.name, error=str(error))
