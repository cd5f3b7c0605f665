"""The similarity → K table (NIRVANA Fig. 10, MoDM Fig. 5b) as data: what `afterimage profile` measures."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pydantic import TypeAdapter, ValidationError

from shared.domain.errors import ModelError
from shared.models.card import ModelCard
from shared.runtime.telemetry import log
from shared.runtime.unreadable import unreadable


@dataclass(frozen=True, slots=True)
class Level:
    """Above `min_similarity` (cosine) a picture may start after `k` of the table's steps."""

    k: int
    min_similarity: float


@dataclass(frozen=True, slots=True)
class Cell:
    """What was measured for one K in one band of similarity: kept beside the table so that it can be judged."""

    k: int
    min_similarity: float
    max_similarity: float
    count: int
    mean_ratio: float
    """Mean quality from state K against the mean from scratch (NIRVANA §5.3)."""
    lower_bound: float
    """95 % lower confidence bound of that ratio, from the paired scores."""
    judged: int = 0
    """Rows where a judge could tell whether the changed attribute came out."""
    kept: float | None = None
    """Share of judged rows whose changed attribute came out, from state K …"""
    kept_from_noise: float | None = None
    """… and from noise, same prompts and seeds."""
    kept_lower_bound: float | None = None
    """95 % lower confidence bound of kept / kept_from_noise, from the paired outcomes."""
    safe: bool = False


class EncoderId(NamedTuple):
    """The identity of a text/image encoder."""

    hash: str = ""
    """Over weights, configuration and tokenizer: vectors of equal hashes can be compared."""
    weights: str = ""
    """sha256 of the weights file alone."""


@dataclass(frozen=True, slots=True)
class KTable:
    """Levels for one model and one encoder; K counts steps of a run of `steps`."""

    levels: tuple[Level, ...]
    steps: int = 50
    model: str = ""
    weights_hash: str = ""
    encoder_hash: str = ""
    alpha: float = 0.9
    """Quality that a start from K must keep, as a share of what it is held against: the picture from noise."""
    source: str = ""
    """Where the table comes from, for people."""
    cells: tuple[Cell, ...] = ()
    images_from: str = ""
    """The model whose finished pictures are started from (MoDM §5.2); empty: latents of the model's own."""
    images_weights_hash: str = ""
    encoder_weights: str = ""
    """sha256 of the encoder's weights file: for a published table, which counts for any model with this encoder."""
    assumed: bool = False
    """Whether it counts whatever it was measured with, as somebody named it (for a replay); `source` says so."""

    def fits(self, encoder: EncoderId) -> bool:
        """Whether its similarities are those of this encoder."""
        if self.encoder_weights:
            return self.encoder_weights == encoder.weights
        return bool(self.encoder_hash) and self.encoder_hash == encoder.hash

    @property
    def lowest_similarity(self) -> float:
        """Below this nothing can be reused; above 1 when the table has no level."""
        return min((level.min_similarity for level in self.levels), default=2.0)


CLIP_L14 = "a2bf730a0c7debf160f7a6b50b3aaf3703e7e88ac73de7a314903141db026dcb"
"""sha256 of the weights of CLIP ViT-L/14, `model.safetensors` of the hub's openai/clip-vit-large-patch14.

The published tables count for these weights alone. Neither the length of the vectors (768 of other encoders too) nor a
name says which weights run. The hash of the whole folder would: but it covers the tokenizer's and configuration's
files, which differ between copies of the same encoder."""

FIG_10 = KTable(
    levels=(Level(5, 0.65), Level(10, 0.75), Level(15, 0.85), Level(20, 0.90), Level(25, 0.95)),
    encoder_weights=CLIP_L14,
    source="NIRVANA Fig. 10",
)
"""The published table: Stable Diffusion, CLIP ViT-L/14, DiffusionDB, α = .9."""

PROFILED = (0.9, 0.95)
"""The α of `afterimage profile` where none is named."""
IMAGE_STEPS = (5, 10, 15, 20, 25, 30)
"""K of 50 that a finished picture may be started from at (MoDM §5.2)."""

MODM = KTable(
    # at or above .25 … .30, and a table's levels begin above theirs
    levels=tuple(Level(k, cosine - 1e-9) for k, cosine in ((5, 0.25), (10, 0.27), (15, 0.28), (25, 0.29), (30, 0.30))),
    encoder_weights=CLIP_L14,
    alpha=0.95,
    source="MoDM's published table",
)
"""MoDM §5.2, Fig. 5b as its code has it: text against picture, CLIP ViT-L/14, α = .95."""

_TABLE: TypeAdapter[KTable] = TypeAdapter(KTable)


class Profiles(Protocol):
    """Where measured tables are kept (shared.catalog)."""

    async def get(self, kind: str, model: str, weights_hash: str) -> dict[str, Any] | None: ...


class NoProfiles:
    """The profiles of a catalog in which nothing was measured."""

    async def get(self, kind: str, model: str, weights_hash: str) -> None:
        return None


def profile_kind(alpha: float, *, images: bool = False) -> str:
    """Under which kind the catalog keeps the table of this α: of latents, or of another model's pictures."""
    return f"{'image_' if images else ''}k_table_{alpha:g}"


def profile_of(table: KTable) -> str:
    """Whose table the catalog keeps it as."""
    return f"{table.model} from {table.images_from}" if table.images_from else table.model


def raised(table: KTable, by: float) -> KTable:
    """Return the table with every threshold higher by so much; the table itself for 0."""
    levels = tuple(replace(level, min_similarity=level.min_similarity + by) for level in table.levels)
    return replace(table, levels=levels) if by else table


def table_file(table: KTable) -> str:
    """What its file beside the weights is called."""
    start = f"image_k_table_{table.images_from}" if table.images_from else "k_table"
    return f"{start}_{table.alpha:g}.json"


def table_to_json(table: KTable) -> dict[str, Any]:
    """As stored in the catalog and in `k_table_<alpha>.json`."""
    value: dict[str, Any] = _TABLE.dump_python(table, mode="json")
    return value


def table_from_json(value: dict[str, Any], source: str = "") -> KTable:
    """Raises pydantic.ValidationError for anything that is not a table."""
    table = _TABLE.validate_python(value)
    return replace(table, source=source or table.source)


async def load_k_tables(profiles: Profiles, card: ModelCard, alpha: float) -> tuple[KTable, ...]:
    """Return the tables that may count for a model's own latents, best first; `latent_table` says which one does.

    These are the one measured here with these weights, those shipped beside them, and Fig. 10.
    """
    shipped = await asyncio.to_thread(_shipped_for_latents, card)
    measured = None
    if not isinstance(profiles, NoProfiles):  # for which the weights need not be hashed
        measured = await _profile(profiles, profile_kind(alpha), card.name, card.weights_hash, alpha)
    return (*([measured] if measured else []), *_by_alpha(shipped, alpha), FIG_10)


def _measured_here(value: dict[str, Any], source: str) -> KTable:
    table = table_from_json(value)
    return table if table.assumed else replace(table, source=source)


def latent_table(
    tables: Sequence[KTable], card: ModelCard, encoder: EncoderId, alpha: float, command: str
) -> tuple[KTable | None, tuple[str, ...]]:
    """Return the table in force for a model's own latents, and what a plan made with it should say.

    A table counts for the weights and the encoder that it was measured with. A no-op model generates nothing whose
    quality could suffer: it takes the first table, whose source then says so. `command` measures a table.
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


def named_table(table: KTable) -> KTable:
    """Return the table as somebody named it for a replay: it counts whatever it was measured with, and says so."""
    said = "as named, whatever model and encoder it was measured with"
    return replace(table, assumed=True, source=f"{table.source or 'a table'}, {said}")


@lru_cache(maxsize=256)  # part of every plan without a table
def profile_command(model: str, encoder: str, alpha: float, images_from: str = "") -> str:
    """Return the command that measures a table of this α for `model` (as the settings name it) with this encoder."""
    alphas = "" if alpha in PROFILED else f"{alpha:g}"
    given = {"--model": model, "--images-from": images_from, "--encoder": encoder, "--alphas": alphas}
    return " ".join(["afterimage profile", *(f"{name} {shlex.quote(value)}" for name, value in given.items() if value)])


def _misfit(table: KTable, card: ModelCard, encoder: EncoderId) -> str:
    """Why the table does not count for these weights and this encoder; empty: it counts."""
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
    """The table measured here; None where there is none that this version can read."""
    value = await profiles.get(kind, name, weights_hash)
    try:
        return None if value is None else _measured_here(value, f"profile of {name}, alpha {alpha:g}")
    except ValidationError as error:
        unreadable("profiles", f"{kind} {name} {weights_hash}", error)
        return None


def shipped_table(card: ModelCard, alpha: float) -> KTable | None:
    """Of the tables in the model's folder the one of this α, else the next stricter, else the strictest there is.

    These are `k_table_<alpha>.json` and the one the card names; None when there is none, broken ones are left out.
    """
    return next(iter(_by_alpha(_shipped_for_latents(card), alpha)), None)


def _shipped_for_latents(card: ModelCard) -> list[KTable]:
    return _shipped(card, "k_table_*.json", *([card.k_table] if card.k_table else []))


def _shipped(card: ModelCard, pattern: str, *named: str) -> list[KTable]:
    """Whole tables in the model's folder: those `named`, then those whose file's name fits."""
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


def read_table(path: Path) -> KTable:
    return replace(_TABLE.validate_json(path.read_bytes()), source=f"{path.parent.name}/{path.name}")


async def load_image_tables(profiles: Profiles, card: ModelCard, sources: Sequence[str], alpha: float) -> list[KTable]:
    """What `card` may do with finished pictures, one table per model that drew them and its weights: measured here
    (`sources` are the names asked for), else shipped beside the weights."""
    found: dict[tuple[str, str], KTable] = {}
    shipped = await asyncio.to_thread(_shipped, card, "image_k_table_*.json")
    for pair in {(table.images_from, table.images_weights_hash) for table in shipped}:
        of_pair = [table for table in shipped if (table.images_from, table.images_weights_hash) == pair]
        found[pair] = _by_alpha(of_pair, alpha)[0]
    for source in sources:
        name = f"{card.name} from {source}"
        table = await _profile(profiles, profile_kind(alpha, images=True), name, card.weights_hash, alpha)
        if table is not None:
            found[table.images_from, table.images_weights_hash] = table
    return list(found.values())


def measured_on(tables: Iterable[KTable], card: ModelCard, sources: Iterable[ModelCard]) -> list[KTable]:
    """The tables by which `card` may start from pictures of `sources`, these weights from those."""
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
    """The table in force for one pair and encoder, or why there is none; never both."""

    table: KTable | None
    why_not: str = ""
    misfit: bool = False
    """Whether there is one that was measured under other conditions, which a plan should say."""


def image_table(
    tables: Sequence[KTable], card: ModelCard, source: tuple[str, str], encoder: EncoderId, command: str
) -> ImageTable:
    """Return what `card` may do with images of `source`, (model, weights hash), by similarities of this encoder.

    A profile counts for the weights of both and the encoder that it was measured with. Without one the published table
    is in force for its own encoder; with any other no image is started from. `command` measures a table.
    """
    model, weights = source
    of_model = [table for table in tables if table.images_from == model]
    ours = [one for one in of_model if (one.weights_hash, one.images_weights_hash) == (card.weights_hash, weights)]
    fits = next((table for table in ours if table.fits(encoder)), None)
    if fits is not None:
        return ImageTable(fits)
    if MODM.fits(encoder) and not ours:
        return ImageTable(MODM)
    pair = f"{card.name} from pictures of {model}"
    if ours:
        return ImageTable(None, f"k_table: {pair} was measured with another encoder; run `{command}`", True)
    if of_model:
        return ImageTable(None, f"k_table: {pair} was measured with other weights; run `{command}`", True)
    return ImageTable(None, f"{pair} was never measured; run `{command}`")
