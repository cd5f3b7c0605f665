"""The work that only the large model may do, and the work that a small one may (MoDM eqs. 7, 8, 11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.global_monitor.demand import Demand, LaneDemand
from shared.domain.messages import lane_of, refine_lane
from shared.domain.types import Modality

REFINE = frozenset(refine_lane(modality) for modality in Modality)


@dataclass(frozen=True, slots=True)
class Workload:
    """Work by kind, in full generations per second."""

    miss: float = 0.0
    """W_miss: work in the large model's lane, including latent hits with their remaining steps."""
    hit: float = 0.0
    """W_hit (eq. 8): image hits that the large model may refine too."""
    small: float = 0.0
    """Requests that name a small model, and image hits that only a small model may refine, because its table proves
    more than the large one's. Not in the paper, where no request names a model and one table serves all."""

    @property
    def total(self) -> float:
        return self.miss + self.hit + self.small

    def times(self, factor: float) -> Workload:
        return Workload(self.miss * factor, self.hit * factor, self.small * factor)


def workload(
    demand: Demand, large: str, smalls: Sequence[str], *, headroom: float = 0.0, catch_up_s: float = 0.0
) -> Workload:
    """Return the work that the workers must do per second.

    headroom: share on top of the measured demand, since at full use a queue grows without end. catch_up_s: seconds
    within which the waiting work should be done; 0: only arriving work counts, as in the paper.
    """

    def of(lanes: frozenset[str]) -> float:
        return sum(_due(lane, headroom, catch_up_s) for lane in demand.lanes if lane.lane in lanes)

    return Workload(
        miss=of(frozenset({lane_of(large)})), hit=of(REFINE), small=of(frozenset(map(lane_of, smalls)))
    )  # fmt: skip


def _due(lane: LaneDemand, headroom: float, catch_up_s: float) -> float:
    return lane.work_per_s * (1 + headroom) + (lane.waiting / catch_up_s if catch_up_s else 0.0)


def weighted_hit(hit: float, large_rate: float, small_rate: float) -> float:
    """Compute eq. 11: the hits' work, converted to the speed of the large model's workers."""
    return hit / (small_rate / large_rate)
