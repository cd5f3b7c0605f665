"""The similarity → K table (NIRVANA Fig. 10, MoDM Fig. 5b) as data, measured by `afterimage profile`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

from pydantic import Field, TypeAdapter

from shared.models.quality import Quality


@dataclass(frozen=True, slots=True)
class Level:
    """One level: above `min_similarity` (cosine) an image may start after `k` of the table's steps."""

    k: int
    min_similarity: float


@dataclass(frozen=True, slots=True)
class Cell:
    """Measurements for one K in one band of similarity, stored beside the table so that it can be checked."""

    k: int
    min_similarity: float
    max_similarity: float
    count: int
    mean_ratio: float
    """Mean quality from state K against the mean from scratch (NIRVANA §5.3)."""
    lower_bound: float
    """95 % lower confidence bound of that ratio, from the paired scores."""
    judged: int = 0
    """Rows in which a judge could read the changed attribute."""
    kept: float | None = None
    """Share of judged rows that show the changed attribute, started from state K."""
    kept_from_noise: float | None = None
    """Share of judged rows that show the changed attribute, from noise with the same prompts and seeds."""
    kept_lower_bound: float | None = None
    """95 % lower confidence bound of kept / kept_from_noise, from the paired outcomes."""
    safe: bool = False
    quality: Quality | None = None
    """Fidelity, look, variety and copying of the band's rows; None in tables of earlier versions."""


class EncoderId(NamedTuple):
    """The identity of a text/image encoder."""

    hash: str = ""
    """Hash over weights, configuration and tokenizer: vectors with equal hashes can be compared."""
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
    """Quality that a start from K must keep, as a share of the quality from noise."""
    source: str = ""
    """Origin of the table, in words for users."""
    cells: tuple[Cell, ...] = ()
    images_from: str = ""
    """The model whose finished images are the start (MoDM §5.2); empty: the model's own latents."""
    images_weights_hash: str = ""
    encoder_weights: str = ""
    """sha256 of the encoder's weights file, for a published table, which applies to any model with this encoder."""
    assumed: bool = False
    """True: a replay names this table, so the table applies to any weights and encoder; `source` states that."""
    floor: Annotated[float | None, Field(exclude_if=lambda floor: floor is None)] = None
    """Similarity up to which serving reuses nothing, whatever the levels say: just below the least similar pair that
    was profiled and whose prompts have anything in common. None: not stated."""
    noise: Annotated[Cell | None, Field(exclude_if=lambda noise: noise is None)] = None
    """Quality of a run of `steps` from noise, as a share of that of the model's default T; its K is 0. None: not
    measured."""

    def fits(self, encoder: EncoderId) -> bool:
        """Return whether the table's similarities belong to this encoder."""
        if self.encoder_weights:
            return self.encoder_weights == encoder.weights
        return bool(self.encoder_hash) and self.encoder_hash == encoder.hash

    @property
    def lowest_similarity(self) -> float:
        """Return the similarity below which nothing is reused; above 1 if the table has no level."""
        return min((level.min_similarity for level in self.levels), default=2.0)


CLIP_L14 = "a2bf730a0c7debf160f7a6b50b3aaf3703e7e88ac73de7a314903141db026dcb"
"""sha256 of the weights of CLIP ViT-L/14, `model.safetensors` of the hub's openai/clip-vit-large-patch14.

The published tables apply to these weights only. Neither a name nor the length of the vectors (768 in other encoders,
too) identifies the weights. The hash of the whole folder would, but it covers tokenizer and configuration files, which
differ between copies of the same encoder."""

FIG_10 = KTable(
    levels=(Level(5, 0.65), Level(10, 0.75), Level(15, 0.85), Level(20, 0.90), Level(25, 0.95)),
    encoder_weights=CLIP_L14,
    source="NIRVANA Fig. 10",
)
"""The published table: Stable Diffusion, CLIP ViT-L/14, DiffusionDB, α = .9."""

PROFILED = (0.9, 0.95)
"""Default values of α for `afterimage profile`."""
IMAGE_STEPS = (5, 10, 15, 20, 25, 30)
"""K of 50 at which a finished image may be the start (MoDM §5.2)."""

MODM = KTable(
    # at or above .25 … .30; a table's level applies strictly above its threshold
    levels=tuple(Level(k, cosine - 1e-9) for k, cosine in ((5, 0.25), (10, 0.27), (15, 0.28), (25, 0.29), (30, 0.30))),
    encoder_weights=CLIP_L14,
    alpha=0.95,
    source="MoDM's published table",
)
"""MoDM §5.2, Fig. 5b as in MoDM's code: text against image, CLIP ViT-L/14, α = .95."""

_TABLE: TypeAdapter[KTable] = TypeAdapter(KTable)


class Profiles(Protocol):
    """Store of measured tables (shared.catalog)."""

    async def get(self, kind: str, model: str, weights_hash: str) -> dict[str, Any] | None: ...


class NoProfiles:
    """Store without any measured table."""

    async def get(self, kind: str, model: str, weights_hash: str) -> None:
        return None


def profile_kind(alpha: float, *, images: bool = False, pairs: bool = False, steps: int = 0) -> str:
    """Return the catalog's kind for a table of this α: from latents, from another model's images, or from pairs of
    latents. steps: T of a table beside the one of the model's default T; 0: that one."""
    return f"{'image_' if images else ''}{'pair_' if pairs else ''}k_table_{alpha:g}{f'_t{steps}' if steps else ''}"


def profile_of(table: KTable) -> str:
    """Return the catalog's name for the table: the model whose images it is for, or its own model."""
    return f"{table.model} from {table.images_from}" if table.images_from else table.model


def raised(table: KTable, by: float) -> KTable:
    """Return the table with `by` added to every threshold; the table itself for 0."""
    levels = tuple(replace(level, min_similarity=level.min_similarity + by) for level in table.levels)
    return replace(table, levels=levels) if by else table


def scaled(table: KTable, steps: int) -> KTable:
    """Return the table's levels for runs of `steps`, each K rounded down, without those that become 0."""
    levels = [replace(level, k=level.k * steps // table.steps) for level in table.levels]
    return replace(table, levels=tuple(level for level in levels if level.k), steps=steps, cells=(), noise=None)


def table_file(table: KTable, steps: int = 0, *, pairs: bool = False) -> str:
    """Return the table's file name beside the weights. steps, pairs: as in `profile_kind`."""
    start = f"image_k_table_{table.images_from}" if table.images_from else f"{'pair_' if pairs else ''}k_table"
    return f"{start}_{table.alpha:g}{f'_t{steps}' if steps else ''}.json"


def table_to_json(table: KTable) -> dict[str, Any]:
    """Return the JSON value stored in the catalog and in `k_table_<alpha>.json`."""
    value: dict[str, Any] = _TABLE.dump_python(table, mode="json")
    for cell in value["cells"]:
        if cell["quality"] is None:  # as earlier versions wrote it
            del cell["quality"]
    return value


def table_from_json(value: dict[str, Any], source: str = "") -> KTable:
    """Read a table from JSON. Raise pydantic.ValidationError for anything that is not a table."""
    table = _TABLE.validate_python(value)
    return replace(table, source=source or table.source)


def named_table(table: KTable) -> KTable:
    """Return the table for a replay that names it: it applies to any weights and encoder, and its source states
    that."""
    said = "as named, whatever model and encoder it was measured with"
    return replace(table, assumed=True, source=f"{table.source or 'a table'}, {said}")


def read_table(path: Path) -> KTable:
    return replace(_TABLE.validate_json(path.read_bytes()), source=f"{path.parent.name}/{path.name}")
