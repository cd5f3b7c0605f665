"""Bubbles of a timeline: intervals in which the same devices are idle (DiffusionPipe §5)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.trainer.pipeline.schedule.simulation import Timeline

ROUNDING_S = 1e-9
"""Intervals shorter than this come from rounding."""


@dataclass(frozen=True)
class Bubble:
    """(start time, end time, idle devices)."""

    start_s: float
    end_s: float
    devices: tuple[int, ...]

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


def devices_of(replicas: Sequence[int]) -> list[range]:
    """Return for each place in the chain its devices, by rank."""
    ends = [0, *itertools.accumulate(replicas)]
    return [range(low, high) for low, high in itertools.pairwise(ends)]


def find_bubbles(timeline: Timeline, replicas: Sequence[int]) -> list[Bubble]:
    """Return the bubbles from the start to the end of the timeline, in order of time.

    A bubble has the same *set* of idle devices throughout, not only the same number: other devices would need other
    inputs. A device that only sums gradients is idle, since the frozen part overlaps with synchronisation (§6.1).
    """
    ranks = devices_of(replicas)
    idle = [_gaps([(one.start_s, one.end_s) for one in row], timeline.end_s) for row in timeline.places]
    times = sorted({0.0, timeline.end_s, *(time for gaps in idle for gap in gaps for time in gap)})
    found: list[Bubble] = []
    at = [0] * len(idle)
    for start, end in itertools.pairwise(times):
        places = []
        for place, gaps in enumerate(idle):
            while at[place] < len(gaps) and gaps[at[place]][1] <= start:
                at[place] += 1
            if at[place] < len(gaps) and gaps[at[place]][0] <= start:
                places.append(place)
        devices = tuple(rank for place in places for rank in ranks[place])
        if not devices or end - start < ROUNDING_S:
            continue
        if found and found[-1].devices == devices and start - found[-1].end_s < ROUNDING_S:
            found[-1] = Bubble(found[-1].start_s, end, devices)
        else:
            found.append(Bubble(start, end, devices))
    return found


def idle_device_s(bubbles: Iterable[Bubble]) -> float:
    """Return the idle seconds, summed over devices: the numerator of the bubble ratio (§6)."""
    return sum(bubble.seconds * len(bubble.devices) for bubble in bubbles)


def _gaps(busy: Sequence[tuple[float, float]], end_s: float) -> list[tuple[float, float]]:
    """Return the intervals between the busy ones, from 0 to the end."""
    bounds = [0.0, *itertools.chain.from_iterable(busy), end_s]
    return [(low, high) for low, high in zip(bounds[::2], bounds[1::2], strict=True) if high - low > ROUNDING_S]
