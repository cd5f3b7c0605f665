"""Which lanes a worker takes from, and in which order (design §3, Lanes)."""

from __future__ import annotations

from collections.abc import Collection

from shared.messages import lane_of, refine_lane


def lanes_of(models: Collection[str]) -> list[str]:
    """Of a worker with these models, the large one first: misses, whose work is the most (MoDM §4.2), then what any
    model may refine, then what names a small one."""
    large, *small = models
    refine = [refine_lane()] if small else []
    return [lane_of(large), *refine, *(lane_of(model) for model in small)]
