"""Bounds: the starts that keep the quality. Policies differ in their bound alone (docs/adr/0013-starts.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from services.retriever.selection import Ladder, lowest
from shared.models.k_table import KTable
from shared.models.tables_in_force import ImageTable

LATENT, IMAGE = "latent", "image"
Maker: TypeAlias = tuple[str, str]
"""Name and weights hash of the model that generated an entry."""
TableOf: TypeAlias = Callable[[str, str], ImageTable]
"""Maker of an image → the table for starts from that image."""


class Near(NamedTuple):
    """One cached latent or image that a search found, and the model that would start from it."""

    kind: str
    """latent | image"""
    similarity: float
    """Cosine of the two prompts; for an image, of the prompt and the image."""
    relation: str = ""
    """A Relation; empty where the plan is made without relations."""
    prompt_before: str = ""
    """Prompt of the entry."""
    prompt_after: str = ""
    """Prompt of the request."""
    codec: str = ""
    """Codec of the entry's states of this kind; empty without such a state."""
    made_by: Maker = ("", "")
    run_by: str = ""
    """Name of the model that would run the start."""


class Bound(Protocol):
    """A rule for the starts that keep the quality of the same request from noise at the default T.

    A bound is made for one question: one model asked for, one encoder, one `savings` knob.
    """

    def latest(self, near: Sequence[Near], steps: int) -> Sequence[int]:
        """Return, for each candidate, the largest K of T = `steps` after which a run may start; 0: none."""

    def noise(self, steps: int) -> bool:
        """Return whether a run of `steps` from noise, by the model asked for, keeps the quality."""

    def why_not(self, near: Near, steps: int) -> str:
        """Return why the candidate allows no step of T = `steps`, in words for the plan."""

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
    step_near: Callable[[int, int, int], int] | None = None
    """(k, T of the table, T of the run) → the step of the run with the nearest noise level, for a model whose T is not
    the request's (MoDM §6). None: k·T/T of the table, rounded down."""


class TableBound(Bound):
    """K tables: one similarity decides (NIRVANA §5.3.1, Fig. 10; MoDM §5.2)."""

    def __init__(
        self,
        latents: Mapping[int, KTable],
        images: Mapping[str, ImageTables] | None = None,
        *,
        default_steps: int = 50,
        savings: float = 0.5,
    ) -> None:
        """latents: the table measured at each T; a T without a table is scaled from that of `default_steps`, else from
        the first. images: by the model that would run. savings: the request's knob."""
        self._latents, self._images = latents, images or {}
        self._default_steps, self._savings = default_steps, savings
        self._ladders: dict[tuple[str, Maker, str, int], tuple[Ladder, int]] = {}

    def latest(self, near: Sequence[Near], steps: int) -> list[int]:
        return [self._latest(one, steps) for one in near]

    def noise(self, steps: int) -> bool:
        if steps == self._default_steps:
            return True  # the reference itself
        table = self._latents.get(steps)
        return table is not None and table.noise is not None and table.noise.safe

    def why_not(self, near: Near, steps: int) -> str:
        table = self.table(near, steps)
        if table is None:
            images = self._images.get(near.run_by) if near.kind == IMAGE else None
            return images.table_of(*near.made_by).why_not if images else "this policy does not start from it"
        least = lowest(table, self._savings, table.floor)
        if not table.levels and near.kind == IMAGE:
            return "not usable: no start from such an image kept the quality when profiled"
        if not table.levels:
            return f"not usable (similarity {near.similarity:.3f}): no start kept this model's quality when profiled"
        if near.similarity > least:
            return f"similar enough ({near.similarity:.3f}), but {steps} steps are too few to skip any"
        return f"not similar enough: {near.similarity:.3f} is not above {least:.3f}"

    def note(self, near: Near) -> str:
        images = self._images.get(near.run_by) if near.kind == IMAGE else None
        found = images.table_of(*near.made_by) if images else None
        return found.why_not if found and found.misfit else ""

    def source(self, near: Near) -> str:
        table = self.table(near, self._default_steps)
        return f"K table: {table.source}." if table and table.assumed and near.kind == LATENT else ""

    def table(self, near: Near, steps: int) -> KTable | None:
        """Return the table in force for this candidate and T; None: it allows no start."""
        if near.kind == IMAGE:
            images = self._images.get(near.run_by)
            return images.table_of(*near.made_by).table if images else None
        tables = self._latents
        return tables.get(steps) or tables.get(self._default_steps) or next(iter(tables.values()), None)

    def _latest(self, near: Near, steps: int) -> int:
        key = near.kind, near.made_by if near.kind == IMAGE else ("", ""), near.run_by, steps
        found = self._ladders.get(key)
        if found is None:
            table = self.table(near, steps) or KTable(())
            own = near.kind == IMAGE and near.run_by in self._images and self._images[near.run_by].step_near
            of = table.steps if own else steps
            found = self._ladders[key] = Ladder(table, of, self._savings, table.floor), of
        ladder, of = found
        k = ladder.wished(near.similarity)
        nearest = self._images[near.run_by].step_near if near.kind == IMAGE and near.run_by in self._images else None
        return nearest(k, of, steps) if k and nearest is not None else k
