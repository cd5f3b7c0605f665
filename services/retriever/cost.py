"""Which start is cheapest at equal quality: latents and pictures, small models and large, in one currency.

Every offer that comes here keeps the same promise: the table that allowed its K proves that a picture from there has
at least α of the quality of one from scratch (NIRVANA §5.3, MoDM eq. 5). Equal in that, they differ in what they cost:

    cost = (T − K) · step + encode,

the steps that are left (NIRVANA §4.3; MoDM eqs. 3 and 4, where C_small is `step`), in steps of the model that was asked
for, and for a picture its way through the refining model's VAE encoder. The cheapest wins. Among equals a latent comes
first: it goes on with the very run that left it. Then `best` decides, as it does among candidates of one kind and pace.

A small model's step counts as less than a whole one only where both models' latency was measured alike; a ratio that
nobody measured is taken for 1, so that nothing leaves the large model for a saving that may not be there. Fewer steps
then decide, and among equals the small model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.retriever.selection import best
from shared.domain.types import Candidate, ModelPlan, State
from shared.models.latency import Latency


@dataclass(frozen=True, slots=True)
class Pace:
    """What a model's work costs, in steps of the model that was asked for."""

    step: float = 1.0
    encode: float = 0.0
    """Of a picture; as much as its decoding, which is measured (a VAE's halves are about alike)."""
    known: bool = False


def pace_of(latencies: Iterable[Latency], asked: Sequence[Latency]) -> Pace:
    """The pace of one model beside the one asked for, by the first latencies of both that were measured alike, if there
    are such on one machine: both here, or both as they ship. A step each where none were."""
    alike = [(one, other) for one in latencies for other in asked if one.comparable(other)]
    if not alike:
        return Pace()
    one, other = min(alike, key=lambda pair: pair[0].here != pair[1].here)
    return Pace(one.step_s / other.step_s, one.decode_s / other.step_s, known=True)


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to start that keeps the quality."""

    candidate: Candidate
    state: State
    may_run: tuple[ModelPlan, ...]
    """Who may, cheapest first; one for a latent."""
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
        """The least wins: by cost, then latents before pictures."""
        return round(self.cost, 9), self.state.is_picture


def cost_of(pace: Pace, steps: int, start: int, *, picture: bool) -> float:
    """Of the rest of a run of `steps` that begins after `start`."""
    return (steps - start) * pace.step + (pace.encode if picture else 0.0)


def cheapest(offers: Iterable[Offer]) -> Offer | None:
    """The offer that wins; None of none."""
    able = list(offers)
    least = min((one.rank for one in able), default=None)
    return best(one for one in able if one.rank == least)
