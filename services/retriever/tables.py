"""The card, K tables and latency of each model. Tables are read again every 30 s, so that a new profile applies without
a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from services.retriever.bounds import Maker, TableOf
from shared.models.card import ModelCard
from shared.models.card_lookup import card_for, given_models, of_images, served_cards
from shared.models.k_table import FIG_10, MODM, EncoderId, KTable, Profiles
from shared.models.latency import Latency, load_latencies
from shared.models.learned_table import LearnedTable, learned_for, load_learned
from shared.models.live_checks import KIND, Checks, checks_from_json
from shared.models.quality import BOUNDS
from shared.models.tables_in_force import (
    ImageTable,
    image_table,
    latent_table,
    load_image_tables,
    load_k_tables,
    load_pair_tables,
    measured_on,
    pair_table,
    profile_command,
)
from shared.runtime.settings import Settings
from shared.runtime.telemetry import log

REREAD_S = 30.0
PAPER_PAIRS = replace(FIG_10, assumed=True, source="NIRVANA Fig. 10 for pairs (FlexCache §3.2), whatever the encoder")
"""FlexCache's rule for pairs: a hit above .65 in both parts, and the steps of NIRVANA's table."""


@dataclass(frozen=True)
class Known:
    """A model and its measurements."""

    card: ModelCard
    given: str
    """Name of the model in the settings or the request."""
    latents: tuple[KTable, ...]
    """Tables that may be in force, best first."""
    pictures: tuple[KTable, ...]
    """One table for each model whose images this model was profiled on."""
    latencies: tuple[Latency, ...]
    """Latencies measured here, then shipped ones."""
    checks: Checks = field(default_factory=Checks)
    """Live checks of this model's hits."""
    learned: tuple[LearnedTable, ...] = ()
    """Learned bounds, those fitted here first."""
    pairs: tuple[KTable, ...] = ()
    """Tables for starts from pairs of latents, best first."""

    def pair_table(self, encoder: EncoderId, settings: Settings) -> KTable | None:
        """Return the table in force for pairs: profiled, or with `reuse_bound=flexcache` the paper's. No other policy
        of a paper has pairs, and without a table no pair starts a run."""
        if settings.reuse_bound == "flexcache":
            return floored(PAPER_PAIRS, settings)
        return floored(pair_table(self.pairs, self.card, encoder), settings) if settings.reuse_bound == "auto" else None

    def learned_bound(self, encoder: EncoderId, settings: Settings) -> LearnedTable | None:
        """Return the learned bound in force for the model's own latents."""
        if not uses_learned(settings):
            return None
        return learned_for(self.learned, self.card, encoder, settings.k_table_alpha)

    def learned_images(self, encoder: EncoderId, settings: Settings) -> dict[tuple[str, Maker], LearnedTable]:
        """Return the learned bounds in force for images, by this model's name and the maker of the image."""
        makers = {(one.images_from, one.images_weights_hash) for one in self.learned if one.images_from}
        alpha = settings.image_k_table_alpha
        found = {maker: learned_for(self.learned, self.card, encoder, alpha, maker) for maker in makers}
        return {(self.card.name, maker): one for maker, one in found.items() if one and uses_learned(settings)}

    def latent_tables(self, encoder: EncoderId, settings: Settings) -> tuple[dict[int, KTable], tuple[str, ...]]:
        """Return the tables in force for the model's own latents by their T, and notes about the first one, which is
        scaled to every T without a table."""
        command = profile_command(self.given, settings.encoder, settings.k_table_alpha)
        few = self._few_steps()
        found: dict[int, KTable] = {}
        noted: tuple[str, ...] = ()
        for of in (
            [table for table in self.latents if table.steps not in few],
            *([table for table in self.latents if table.steps == steps] for steps in sorted(few)),
        ):
            table, notes = latent_table(of, self.card, encoder, settings.k_table_alpha, command) if of else (None, ())
            table = floored(table, settings, settings.similarity_floor)
            if table is not None and (found or table.steps not in few):
                found[table.steps] = table
            noted = noted or notes
        return found, noted

    def _few_steps(self) -> set[int]:
        """Return the T of `auto_steps` whose tables apply to that T alone.

        A table of the default T is scaled to every other T. Where none is in force for these weights, the table of
        the largest T takes its part, unless few steps begin without the prompt: equal noise levels alone do not make
        equal states then. The no-op model has the paper's table.
        """
        few = {*self.card.auto_steps} - {self.card.default_steps}
        own = {one.steps for one in self.latents if one.assumed or one.weights_hash == self.card.weights_hash}
        fixed = self.card.unprompted or self.card.is_noop or own - few
        return few if fixed else few - {max(own, default=0)}

    def noise(self, varied: bool = False) -> frozenset[int]:
        """Return the T whose runs from noise were measured to keep the quality of the default T. varied: also the
        variety."""
        return self._noise_of(self.latents, varied)

    def noise_like(self, asked: ModelCard, varied: bool = False) -> frozenset[int]:
        """Return the T whose runs from noise were measured to keep the quality of another model, whose images this
        model was profiled on (`afterimage profile --images-from`). varied: also the variety."""
        whose = asked.name, asked.weights_hash
        tables = (table for table in self.pictures if (table.images_from, table.images_weights_hash) == whose)
        return self._noise_of(tables, varied)

    def _noise_of(self, tables: Iterable[KTable], varied: bool) -> frozenset[int]:
        own = [table for table in tables if self.card.is_noop or table.weights_hash == self.card.weights_hash]
        cells = [(table.steps, table.noise) for table in own if table.noise is not None and table.noise.safe]
        kept = BOUNDS["variety"].holds
        return frozenset(
            steps for steps, cell in cells if not varied or kept(cell.quality.variety if cell.quality else None)
        )

    def table_of(self, encoder: EncoderId, settings: Settings) -> TableOf:
        """Return a lookup of this model's tables for images, by the model that generated them."""

        def of(model: str, weights: str) -> ImageTable:
            command = profile_command(self.given, settings.encoder, settings.image_k_table_alpha, model)
            found = image_table(self.pictures, self.card, (model, weights), encoder, command)
            return replace(found, table=floored(found.table, settings))

        return of

    def may_refine(self, encoder: EncoderId, sources: Iterable[ModelCard]) -> bool:
        """Return whether the model could start from any image of `sources`, by similarities of this encoder."""
        return MODM.fits(encoder) or any(
            table.fits(encoder) for table in measured_on(self.pictures, self.card, sources)
        )


def floored(table: KTable | None, settings: Settings, floor: float | None = None) -> KTable | None:
    """Return the table with the floor in force: its own, else the given one; none where `reuse_rules` is paper."""
    if table is None or settings.reuse_rules == "paper":
        return table and replace(table, floor=None)
    return table if table.floor is not None else replace(table, floor=floor)


def uses_learned(settings: Settings) -> bool:
    """Return whether learned bounds are in force: the papers' policies and rules know K tables alone."""
    return settings.reuse_bound == "auto" and settings.reuse_rules == "relation"


class Tables:
    """Models by name: the served ones, and others that requests ask for."""

    def __init__(self, profiles: Profiles, settings: Settings) -> None:
        self._profiles, self._settings = profiles, settings
        self._known: dict[str, Known] = {}
        self._served: dict[str, ModelCard] = {}

    async def open(self) -> None:
        """Read the models that the settings serve. Raises ModelError when one is unknown."""
        self._served = await asyncio.to_thread(served_cards, self._settings)
        for card, (_, name) in zip(self._served.values(), given_models(self._settings), strict=True):
            await self._read(card, name)

    @property
    def served(self) -> list[Known]:
        """The large model, then the small ones; not the video model, which starts from no image of theirs."""
        return [self._known[name] for name in of_images(self._served)]

    async def of(self, model: str) -> Known:
        """Return the model of this name or path. Raises ModelError when it is unknown."""
        if model not in self._known:
            # use the dtype in which workers compute: it is part of every latent's compatibility key
            card = await asyncio.to_thread(card_for, model, self._settings)  # this may call the hub
            return await self._read(card, model)
        return self._known[model]

    async def _read(self, card: ModelCard, given: str) -> Known:
        await asyncio.to_thread(lambda: (card.weights_hash, card.scheduler_config, card.reuse_key))  # a moment
        settings = self._settings
        sources = dict.fromkeys((*self._served, card.name))
        self._known[card.name] = known = Known(
            card,
            given,
            await load_k_tables(self._profiles, card, settings.k_table_alpha),
            tuple(await load_image_tables(self._profiles, card, list(sources), settings.image_k_table_alpha)),
            await load_latencies(self._profiles, card),
            checks_from_json(await self._profiles.get(KIND, card.name, card.weights_hash)),
            await load_learned(self._profiles, card, list(sources)),
            await load_pair_tables(self._profiles, card, settings.k_table_alpha),
        )
        return known

    async def keep_fresh(self) -> None:
        """Read the tables again every REREAD_S seconds, without end."""
        while True:
            await asyncio.sleep(REREAD_S)
            await self._reread(list(self._known.values()))

    async def _reread(self, known: Iterable[Known]) -> None:
        for one in known:
            try:
                await self._read(one.card, one.given)
            except Exception as error:  # the tables in memory stay in force; the next reading may succeed
                log("retriever").warning("K tables not read again", model=one.card.name, error=repr(error))
