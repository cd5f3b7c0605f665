"""Bounds: the starts that keep the quality. Policies differ in their bound alone (docs/adr/0013-starts.md)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from services.retriever.selection import Ladder, lowest
from shared.models.k_table import KTable
from shared.models.tables_in_force import ImageTable

LATENT, IMAGE, PAIR = "latent", "image", "pair"
Maker: TypeAlias = tuple[str, str]
"""Name and weights hash of the model that generated an entry."""
TableOf: TypeAlias = Callable[[str, str], ImageTable]
"""Maker of an image → the table for starts from that image."""


class Near(NamedTuple):
    """One cached latent, image or pair of latents that a search found, and the model that would start from it."""

    kind: str
    """latent | image | pair"""
    similarity: float
    """Cosine of the two prompts; for an image, of the prompt and the image; for a pair, the lower one of object and
    background (FlexCache §4.2.1)."""
    relation: str = ""
    """A Relation; empty where the plan is made without relations."""
    prompt_before: str = ""
    """Prompt of the entry."""
    prompt_after: str = ""
    """Prompt of the request."""
    made_by: Maker = ("", "")
    run_by: str = ""
    """Name of the model that would run the start."""
    may_copy: bool = True
    """Likeness to this source is no fault: the request edits it, or its client asked for the same composition."""


def not_similar(near: Near, least: float) -> str:
    """Return why a candidate that is not above the similarity `least` starts nothing, in words for the plan."""
    compared, equals = (", the lower one of object and background,", "parts") if near.kind == PAIR else ("", "prompts")
    limit = f"is not above {least:.3f}" if least < 0.9995 else f"is too little: only equal {equals} may start here"
    return f"not similar enough: {near.similarity:.3f}{compared} {limit}"


class Bound(Protocol):
    """A rule for the starts that keep the quality of the same request from noise at the default T.

    A bound is made for one question: one model asked for, one encoder, one `savings` knob.
    """

    def latest(self, near: Sequence[Near], steps: int) -> Sequence[int]:
        """Return, for each candidate, the largest K of T = `steps` after which a run may start; 0: none."""

    def noise(self, steps: int, varied: bool = False) -> bool:
        """Return whether a run of `steps` from noise, by the model asked for, keeps the quality. The planner asks this
        only about another T than that of the reference. varied: variety counts too."""

    def why_not(self, near: Sequence[Near], steps: int) -> str:
        """Return why no step of T = `steps` is allowed, in words for the plan. near: one candidate, once for each model
        that could run it."""

    def note(self, near: Near) -> str:
        """Return a note for `Plan.degraded` where this candidate was measured under other conditions; else empty."""
        return ""

    def source(self, near: Near) -> str:
        """Return a sentence about the origin of the bound where the plan must state it; else empty."""
        return ""


@dataclass(frozen=True, slots=True)
class ImageTables:
    """The K tables of one model for starts from finished images (MoDM §5.2)."""

    table_of: TableOf
    steps: int = 50
    """T of the model's run for this request: the T that the request names, or the model's own (MoDM §6)."""
    step_near: Callable[[int, int, int], int] | None = None
    """(k, T of the table, T of the run) → the step of the run with the nearest noise level, for a model with its own T.
    None: k·T/T of the table, rounded down."""


class TableBound(Bound):
    """K tables: one similarity decides (NIRVANA §5.3.1, Fig. 10; MoDM §5.2)."""

    def __init__(
        self,
        latents: Mapping[int, KTable],
        images: Mapping[str, ImageTables] | None = None,
        *,
        steps: int = 50,
        savings: float = 0.5,
        noise: Collection[int] = (),
        varied: Collection[int] = (),
        pairs: KTable | None = None,
    ) -> None:
        """latents: the tables by the T at which they were measured; the first one is scaled to `steps`, the T that the
        request names or the model's default. images: tables by the model that would run. savings: the request's knob.
        noise: the T whose runs from noise were measured to keep the quality. varied: those that also keep variety.
        pairs: the table for pairs of latents; None: no pair starts a run."""
        self._latents, self._images = latents, images or {}
        self._pairs = {pairs.steps: pairs} if pairs is not None else {}
        self._steps, self._savings = steps, savings
        self._noise, self._varied = frozenset(noise), frozenset(varied)
        self._ladders: dict[tuple[str, Maker, str, int], Callable[[float], int]] = {}

    def latest(self, near: Sequence[Near], steps: int) -> list[int]:
        return [self._allowed(one, steps)(one.similarity) for one in near]

    def noise(self, steps: int, varied: bool = False) -> bool:
        return steps in self._noise and (not varied or steps in self._varied)

    def why_not(self, near: Sequence[Near], steps: int) -> str:
        tables = [table for one in near if (table := self._table(one, steps)) is not None]
        first = near[0]
        if not tables:
            unmeasured = f"not usable: no K table was measured at T = {steps}"
            return next((why for one in near if (why := self._image_table(one).why_not)), unmeasured)
        if not any(table.levels for table in tables):
            if first.kind == IMAGE:
                return "not usable: no start from such an image kept the quality when profiled"
            return f"not usable (similarity {first.similarity:.3f}): no start kept this model's quality when profiled"
        least = min(lowest(table, self._savings, table.floor) for table in tables)
        if first.similarity > least:
            return f"similar enough ({first.similarity:.3f}), but {steps} steps are too few to skip any"
        return not_similar(first, least)

    def note(self, near: Near) -> str:
        found = self._image_table(near)
        return found.why_not if found.misfit else ""

    def source(self, near: Near) -> str:
        table = self._table(near, self._steps) if near.kind != IMAGE else None
        return f"K table: {table.source}." if table is not None and table.assumed else ""

    def _image_table(self, near: Near) -> ImageTable:
        images = self._images.get(near.run_by) if near.kind == IMAGE else None
        return ImageTable(None) if images is None else images.table_of(*near.made_by)

    def _table(self, near: Near, steps: int) -> KTable | None:
        """Return the table for this candidate and T; None: it allows no start. Only a run of the T that the request
        names, or of a model's own T, takes a table of another T."""
        if near.kind != IMAGE:
            tables = self._latents if near.kind == LATENT else self._pairs
            scaled = next(iter(tables.values()), None) if steps == self._steps else None
            return tables.get(steps, scaled)
        table = self._image_table(near).table
        if table is None or steps not in (table.steps, self._images[near.run_by].steps):
            return None
        return table

    def _allowed(self, near: Near, steps: int) -> Callable[[float], int]:
        """Return the function from similarity to K for candidates like this one."""
        key = near.kind, near.made_by if near.kind == IMAGE else ("", ""), near.run_by, steps
        if (found := self._ladders.get(key)) is None:
            found = self._ladders[key] = self._ladder(near, steps)
        return found

    def _ladder(self, near: Near, steps: int) -> Callable[[float], int]:
        table = self._table(near, steps)
        if table is None:
            return lambda similarity: 0
        nearest = self._images[near.run_by].step_near if near.kind == IMAGE else None
        ladder = Ladder(table, steps if nearest is None else table.steps, self._savings, table.floor)
        if nearest is None:
            return ladder.wished
        return lambda similarity: nearest(k, table.steps, steps) if (k := ladder.wished(similarity)) else 0
