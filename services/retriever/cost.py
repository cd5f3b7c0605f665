"""The cost of a start, by which the planner compares latents and images, small and large models, at equal quality.

Every offer makes the same promise: the table that allowed its K proves that an image started there has at least α of
the quality of one from scratch (NIRVANA §5.3, MoDM eq. 5). Offers therefore differ only in cost:

    cost = (T − K) · step + encode,

in steps of the model that was asked for. (T − K) · step is the work of the steps that are left (NIRVANA §4.3; MoDM
eqs. 3 and 4, where C_small is `step`). `encode` is the refining model's VAE encoding of an image. The cheapest offer
wins. Among equals a latent comes first, since it continues the run that stored it; then `best` decides, as it does
among candidates of one kind and pace.

A small model's step costs less than 1 only where the latencies of both models were measured alike. An unmeasured ratio
counts as 1, so that no request leaves the large model for an unproven saving. Then fewer steps decide, and among equals
the small model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.retriever.selection import best
from shared.domain.types import Candidate, ModelPlan, State
from shared.models.latency import Latency

SIMILAR = 0.01
"""Difference of two cosines below which a candidate counts as similar as another one."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The cost of one model's work, in steps of the model that was asked for."""

    step: float = 1.0
    encode: float = 0.0
    """Cost of encoding an image. The measured cost of decoding is taken, since a VAE's halves take about as long."""
    known: bool = False


def pace_of(latencies: Iterable[Latency], asked: Sequence[Latency]) -> Pace:
    """Return the pace of one model relative to the one asked for, by the first latencies of both that were measured
    alike. Latencies of one machine are preferred: both measured here, or both as shipped. Without such latencies, a
    step costs 1."""
    alike = [(one, other) for one in latencies for other in asked if one.comparable(other)]
    if not alike:
        return Pace()
    one, other = min(alike, key=lambda pair: pair[0].here != pair[1].here)
    return Pace(one.step_s / other.step_s, one.decode_s / other.step_s, known=True)


@dataclass(frozen=True, slots=True)
class Offer:
    """One start that keeps the quality, and its cost."""

    candidate: Candidate
    state: State
    may_run: tuple[ModelPlan, ...]
    """Models that may run the start, cheapest first; one for a latent."""
    cost: float

    @property
    def entry_id(self) -> str:
        return self.candidate.entry_id

    @property
    def similarity(self) -> float:
        return self.candidate.similarity

    @property
    def start_step(self) -> int:
        return self.candidate.start_step

    @property
    def rank(self) -> tuple[float, bool]:
        """Sort key; the least wins: by cost, then latents before images."""
        return round(self.cost, 9), self.state.is_picture


def cost_of(pace: Pace, steps: int, start: int, *, picture: bool) -> float:
    """Return the cost of the rest of a run of `steps` that begins after `start`."""
    return (steps - start) * pace.step + (pace.encode if picture else 0.0)


def cheapest(offers: Iterable[Offer], drawn: float | None = None) -> Offer | None:
    """Return the cheapest offer; None without offers.

    drawn: a number in [0, 1) that chooses among equals, whose similarities differ by less than SIMILAR; None: the most
    similar, and then the youngest.
    """
    able = list(offers)
    least = min((one.rank for one in able), default=None)
    first = best(one for one in able if one.rank == least)
    if drawn is None or first is None:
        return first
    near = (first.start_step, first.similarity - SIMILAR)
    equals = [one for one in able if one.rank == least and (one.start_step, one.similarity) > near]
    return sorted(equals, key=lambda one: one.entry_id)[int(drawn * len(equals))]
