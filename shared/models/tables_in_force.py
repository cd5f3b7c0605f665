"""K tables of a model, loaded from catalog and weights folder, and the choice of the table in force."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shared.domain.errors import ModelError
from shared.models.card import ModelCard
from shared.models.k_table import (
    CLIP_L14,
    FIG_10,
    MODM,
    PROFILED,
    EncoderId,
    KTable,
    NoProfiles,
    Profiles,
    profile_kind,
    read_table,
    table_from_json,
)
from shared.runtime.telemetry import log
from shared.runtime.unreadable import unreadable


async def load_k_tables(profiles: Profiles, card: ModelCard, alpha: float) -> tuple[KTable, ...]:
    """Return the candidate tables for a model's own latents, best first; `latent_table` chooses one.

    They are the tables measured here with these weights, the shipped ones, and Fig. 10. Tables of the model's
    `auto_steps` follow the table of its default T.
    """
    shipped = await asyncio.to_thread(_shipped_for_latents, card)
    measured = []
    if not isinstance(profiles, NoProfiles):  # NoProfiles needs no hash of the weights
        kinds = [profile_kind(alpha, steps=steps) for steps in (0, *card.auto_steps) if steps != card.default_steps]
        measured = [await _profile(profiles, kind, card.name, card.weights_hash, alpha) for kind in kinds]
    return (*filter(None, measured), *_by_alpha(shipped, alpha), FIG_10)


def _measured_here(value: dict[str, Any], source: str) -> KTable:
    table = table_from_json(value)
    return table if table.assumed else replace(table, source=source)


def latent_table(
    tables: Sequence[KTable], card: ModelCard, encoder: EncoderId, alpha: float, command: str
) -> tuple[KTable | None, tuple[str, ...]]:
    """Return the table in force for a model's own latents, and the note for plans made with it.

    A table applies to the weights and the encoder that it was measured with. A no-op model has no image quality to
    lose, so it takes the first table, and the table's source then states that. `command` is the command that measures a
    table.
    """
    misfits = []
    for table in tables:
        why_not = _misfit(table, card, encoder)
        if not why_not:
            return table, _notes(table, card, alpha, command)
        if card.is_noop:
            said = f"{table.source}, taken for a no-op model although {why_not}"
            return replace(table, assumed=True, source=said), ()
        misfits.append(f"{table.source}: {why_not}")
    said = f"k_table: none counts for {card.name} with this encoder ({'; '.join(dict.fromkeys(misfits))})"
    return None, (f"{said}; only exact repeats are reused; run `{command}`",)


@lru_cache(maxsize=256)  # part of every plan without a table
def profile_command(model: str, encoder: str, alpha: float, images_from: str = "") -> str:
    """Return the command that measures a table of this α for `model` (as the settings name it) with this encoder."""
    alphas = "" if alpha in PROFILED else f"{alpha:g}"
    given = {"--model": model, "--images-from": images_from, "--encoder": encoder, "--alphas": alphas}
    return " ".join(["afterimage profile", *(f"{name} {shlex.quote(value)}" for name, value in given.items() if value)])


def _misfit(table: KTable, card: ModelCard, encoder: EncoderId) -> str:
    """Return why the table does not apply to these weights and this encoder; empty if it applies."""
    if table.assumed:
        return ""
    if not table.encoder_weights and table.weights_hash != card.weights_hash:
        return "it was measured with other weights"
    if not table.fits(encoder):
        return f"it was measured with {'CLIP ViT-L/14' if table.encoder_weights == CLIP_L14 else 'another encoder'}"
    return ""


def _notes(table: KTable, card: ModelCard, alpha: float, command: str) -> tuple[str, ...]:
    if card.is_noop or table.assumed:
        return ()
    if table.encoder_weights:
        none = f"k_table: none measured for {card.name} at alpha {alpha:g}"
        return (f"{none}, {table.source} is used; run `{command}`",)
    if table.alpha < alpha:
        return (f"k_table: measured for alpha {table.alpha:g}, not {alpha:g}; run `{command}`",)
    return ()


async def _profile(profiles: Profiles, kind: str, name: str, weights_hash: str, alpha: float) -> KTable | None:
    """Return the table measured here; None if there is none that this version can read."""
    value = await profiles.get(kind, name, weights_hash)
    try:
        return None if value is None else _measured_here(value, f"profile of {name}, alpha {alpha:g}")
    except ValidationError as error:
        unreadable("profiles", f"{kind} {name} {weights_hash}", error)
        return None


def shipped_table(card: ModelCard, alpha: float) -> KTable | None:
    """Return the table of this α in the model's folder, else the next stricter one, else the strictest.

    Candidates are `k_table_<alpha>.json` and the card's own table; broken files are ignored. None if there is none.
    """
    return next(iter(_by_alpha(_shipped_for_latents(card), alpha)), None)


def _shipped_for_latents(card: ModelCard) -> list[KTable]:
    return _shipped(card, "k_table_*.json", *([card.k_table] if card.k_table else []))


def _shipped(card: ModelCard, pattern: str, *named: str) -> list[KTable]:
    """Return the readable tables in the model's folder: the `named` ones, then those whose file name fits."""
    if card.is_noop:
        return []
    try:
        paths = [*(card.folder / name for name in named), *sorted(card.folder.glob(pattern))]
        return [table for path in paths if (table := _whole(path))]
    except ModelError as error:
        log("k_table").warning("no shipped table", model=card.name, error=str(error))
        return []


def _by_alpha(tables: Sequence[KTable], alpha: float) -> list[KTable]:
    """Sort the tables: this α and stricter ones, least strict first; then the others, strictest first."""
    return sorted(tables, key=lambda table: (table.alpha < alpha, abs(table.alpha - alpha)))


def _whole(path: Path) -> KTable | None:
    try:
        return read_table(path) if path.is_file() else None
    except (ValidationError, OSError) as error:
        log("k_table").warning("the shipped table is ignored", table=str(path), error=str(error))
        return None


async def load_image_tables(profiles: Profiles, card: ModelCard, sources: Sequence[str], alpha: float) -> list[KTable]:
    """Load `card`'s tables for starts from finished images: one per model whose images they are, its weights, and T;
    those of the default T first, then those of the largest.

    `sources` are names of such models. A table of theirs in the catalog replaces the shipped one."""
    found: dict[tuple[str, str, int], KTable] = {}
    shipped = await asyncio.to_thread(_shipped, card, "image_k_table_*.json")
    for key in sorted({_measured_key(table) for table in shipped}):
        found[key] = _by_alpha([table for table in shipped if _measured_key(table) == key], alpha)[0]
    further = (0, *(steps for steps in card.auto_steps if steps != card.default_steps))
    kinds = [profile_kind(alpha, images=True, steps=steps) for steps in further]
    for source in sources:
        for kind in kinds:
            table = await _profile(profiles, kind, f"{card.name} from {source}", card.weights_hash, alpha)
            if table is not None:
                found[_measured_key(table)] = table
    return sorted(found.values(), key=lambda table: (table.steps != card.default_steps, -table.steps))


def _measured_key(table: KTable) -> tuple[str, str, int]:
    return table.images_from, table.images_weights_hash, table.steps


async def load_pair_tables(profiles: Profiles, card: ModelCard, alpha: float) -> tuple[KTable, ...]:
    """Return the candidate tables for starts from pairs of latents, best first: measured here, then shipped
    (`pair_k_table_<alpha>.json`). Their similarities are the lower one of object and background (FlexCache §4.2.1)."""
    shipped = await asyncio.to_thread(_shipped, card, "pair_k_table_*.json")
    measured = None
    if not isinstance(profiles, NoProfiles):
        measured = await _profile(profiles, profile_kind(alpha, pairs=True), card.name, card.weights_hash, alpha)
    return (*([measured] if measured else []), *_by_alpha(shipped, alpha))


def pair_table(tables: Sequence[KTable], card: ModelCard, encoder: EncoderId) -> KTable | None:
    """Return the table in force for pairs: the first one that was measured with these weights and this encoder."""
    return next((table for table in tables if not _misfit(table, card, encoder)), None)


def measured_on(tables: Iterable[KTable], card: ModelCard, sources: Iterable[ModelCard]) -> list[KTable]:
    """Return the tables that let `card` start from images of `sources`, for exactly these weights."""
    pairs = {(source.name, source.weights_hash) for source in sources}
    return [
        table
        for table in tables
        if table.levels
        and table.weights_hash == card.weights_hash
        and (table.images_from, table.images_weights_hash) in pairs
    ]


@dataclass(frozen=True, slots=True)
class ImageTable:
    """The table in force for one pair and encoder, or the reason why there is none; never both."""

    table: KTable | None
    why_not: str = ""
    misfit: bool = False
    """True: there is a table measured under other conditions, which the plan notes."""


def image_table(
    tables: Sequence[KTable], card: ModelCard, source: tuple[str, str], encoder: EncoderId, command: str
) -> ImageTable:
    """Return the table for starts of `card` from images of `source`, (model, weights hash), with this encoder.

    A profile applies to the encoder and both weights that it was measured with. Without a profile the published table
    applies to its own encoder only; with any other encoder, no image is a start. `command` is the command that measures
    a table.
    """
    model, weights = source
    of_model = [table for table in tables if table.images_from == model]
    ours = [one for one in of_model if (one.weights_hash, one.images_weights_hash) == (card.weights_hash, weights)]
    fits = next((table for table in ours if table.fits(encoder)), None)
    if fits is not None:
        return ImageTable(fits)
    if MODM.fits(encoder) and not ours:
        return ImageTable(MODM)
    pair = f"{card.name} from images of {model}"
    if ours:
        return ImageTable(None, f"k_table: {pair} was measured with another encoder; run `{command}`", True)
    if of_model:
        return ImageTable(None, f"k_table: {pair} was measured with other weights; run `{command}`", True)
    return ImageTable(None, f"{pair} was never measured; run `{command}`")
