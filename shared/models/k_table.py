"""The similarity → K table (NIRVANA Fig. 10, MoDM Fig. 5b) as data: what `afterimage profile` measures."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from shared.errors import ModelError
from shared.models.card import ModelCard
from shared.telemetry import log
from shared.unreadable import unreadable


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

    @property
    def lowest_similarity(self) -> float:
        """Below this nothing can be reused; above 1 when the table has no level."""
        return min((level.min_similarity for level in self.levels), default=2.0)


FIG_10 = KTable(
    levels=(Level(5, 0.65), Level(10, 0.75), Level(15, 0.85), Level(20, 0.90), Level(25, 0.95)),
    source="NIRVANA Fig. 10",
)
"""The published table: Stable Diffusion, CLIP ViT-L/14, DiffusionDB, α = .9."""

IMAGE_STEPS = (5, 10, 15, 20, 25, 30)
"""K of 50 that a finished picture may be started from at (MoDM §5.2)."""

MODM = KTable(
    # at or above .25 … .30, and a table's levels begin above theirs
    levels=tuple(Level(k, cosine - 1e-9) for k, cosine in ((5, 0.25), (10, 0.27), (15, 0.28), (25, 0.29), (30, 0.30))),
    alpha=0.95,
    source="MoDM's published table",
)
"""MoDM §5.2, Fig. 5b as its code has it: text against picture, CLIP ViT-L/14, α = .95."""
MODM_DIM = 768
"""Length of that encoder's embeddings. The thresholds are cosines of one encoder: in another's range they mean
nothing, and no start from a picture is proven by them."""

_TABLE: TypeAdapter[KTable] = TypeAdapter(KTable)


class Profiles(Protocol):
    """Where measured tables are kept (shared.catalog)."""

    async def get(self, kind: str, model: str, weights_hash: str) -> dict[str, Any] | None: ...


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


async def load_k_table(profiles: Profiles, card: ModelCard, alpha: float) -> KTable:
    """The table in force for a model: measured here with these weights, else shipped beside them, else Fig. 10; what
    may be wrong with it, `doubts` says."""
    measured = await _profile(profiles, profile_kind(alpha), card.name, card.weights_hash, alpha)
    if measured is not None:
        return measured
    return await asyncio.to_thread(shipped_table, card, alpha) or FIG_10


async def _profile(profiles: Profiles, kind: str, name: str, weights_hash: str, alpha: float) -> KTable | None:
    """The table measured here; None where there is none that this version can read."""
    value = await profiles.get(kind, name, weights_hash)
    try:
        return None if value is None else table_from_json(value, f"profile of {name}, alpha {alpha:g}")
    except ValidationError as error:
        unreadable("profiles", f"{kind} {name} {weights_hash}", error)
        return None


def shipped_table(card: ModelCard, alpha: float) -> KTable | None:
    """Of the tables in the model's folder the one of this α, else the next stricter, else the strictest there is.

    These are `k_table_<alpha>.json` and the one the card names; None when there is none, broken ones are left out.
    """
    return _nearest(_shipped(card, "k_table_*.json", *([card.k_table] if card.k_table else [])), alpha)


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


def _nearest(tables: Sequence[KTable], alpha: float) -> KTable | None:
    stricter = [table for table in tables if table.alpha >= alpha]
    by_alpha = attrgetter("alpha")
    return min(stricter, key=by_alpha) if stricter else max(tables, key=by_alpha, default=None)


def _whole(path: Path) -> KTable | None:
    try:
        return read_table(path) if path.is_file() else None
    except (ValidationError, OSError) as error:
        log("k_table").warning("the shipped table is ignored", table=str(path), error=str(error))
        return None


def read_table(path: Path) -> KTable:
    return replace(_TABLE.validate_json(path.read_bytes()), source=f"{path.parent.name}/{path.name}")


def doubts(table: KTable, card: ModelCard, encoder_hash: str, alpha: float) -> tuple[str, ...]:
    """What a plan made with this table should say: not measured for this model, these weights, this encoder or this α.

    A no-op denoiser draws nothing whose quality could be in doubt.
    """
    notes = []
    if table.source == FIG_10.source and not card.is_noop:
        notes.append(
            f"k_table: none measured for {card.name} at alpha {alpha:g}, {FIG_10.source} is used; "
            "run `afterimage profile`"
        )
    elif table.alpha < alpha and not card.is_noop:
        notes.append(f"k_table: measured for alpha {table.alpha:g}, not {alpha:g}; run `afterimage profile`")
    if table.weights_hash and table.weights_hash != card.weights_hash:
        notes.append(f"k_table: measured with other weights of {card.name}; run `afterimage profile`")
    if table.encoder_hash and encoder_hash and table.encoder_hash != encoder_hash:
        notes.append("k_table: measured with another encoder; run `afterimage profile`")
    return tuple(notes)


async def load_image_tables(profiles: Profiles, card: ModelCard, sources: Sequence[str], alpha: float) -> list[KTable]:
    """What `card` may do with finished pictures, one table per model that drew them and its weights: measured here
    (`sources` are the names asked for), else shipped beside the weights."""
    found: dict[tuple[str, str], KTable] = {}
    shipped = await asyncio.to_thread(_shipped, card, "image_k_table_*.json")
    for pair in {(table.images_from, table.images_weights_hash) for table in shipped}:
        of_pair = [table for table in shipped if (table.images_from, table.images_weights_hash) == pair]
        if (table := _nearest(of_pair, alpha)) is not None:
            found[pair] = table
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
    tables: Sequence[KTable], card: ModelCard, source: tuple[str, str], encoder_hash: str, dim: int
) -> ImageTable:
    """What `card` may do with pictures of `source`, (model, weights hash), by similarities of this encoder.

    A profile counts for the weights of both and the encoder that it was measured with. Without one the published table
    is in force for embeddings of its encoder's length; for any other nothing is proven, and nothing is started from.
    """
    model, weights = source
    of_model = [table for table in tables if table.images_from == model]
    ours = [one for one in of_model if (one.weights_hash, one.images_weights_hash) == (card.weights_hash, weights)]
    fits = next((table for table in ours if table.encoder_hash == encoder_hash), None)
    if fits is not None:
        return ImageTable(fits)
    if dim == MODM_DIM and not ours:
        return ImageTable(MODM)
    pair, again = (
        f"{card.name} from pictures of {model}",
        f"afterimage profile --model {card.name} --images-from {model}",
    )
    if ours:
        return ImageTable(None, f"k_table: {pair} was measured with another encoder; run `{again}`", True)
    if of_model:
        return ImageTable(None, f"k_table: {pair} was measured with other weights; run `{again}`", True)
    return ImageTable(None, f"{pair} was never measured; run `{again}`")
