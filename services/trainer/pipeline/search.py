"""Search the number of stages, micro-batches and devices of a pipeline (DiffusionPipe Table 3, step 5 of Fig. 7)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from services.trainer.pipeline.costs.profile import Backbone, Profile
from services.trainer.pipeline.costs.stage_costs import merged
from services.trainer.pipeline.plans import Plan, filled, make_plan
from services.trainer.pipeline.settings import PlanSettings

LARGEST_GROUP = 8
MOST_MICRO_BATCHES = 32


def directions(profile: Profile, settings: PlanSettings) -> list[tuple[Backbone, ...]]:
    """Return the ways to divide the backbones over the directions of pipelines.

    One backbone has one direction. Two have one each. Of more, each division into two groups is a way; the planner
    takes the one with the fastest plan. The paper does not say how to divide (§4.2).
    """
    backbones = profile.backbones
    if len(backbones) == 1:
        return [backbones]
    local = settings.batch / settings.devices
    ways = []
    for count in range(len(backbones) - 1):
        for others in itertools.combinations(backbones[1:], count):
            down = (backbones[0], *others)
            up = tuple(one for one in backbones if one not in down)
            ways.append(tuple(merged(" + ".join(one.name for one in part), part, local)[0] for part in (down, up)))
    return ways


def plans(profile: Profile, settings: PlanSettings, name: str = "diffusionpipe") -> Iterator[Plan]:
    """Yield every feasible plan with a pipeline of two stages or more, not filled yet."""
    ways = directions(profile, settings)
    groups = settings.group_sizes or divisors(settings.devices, 2, LARGEST_GROUP)
    for group in groups:
        for stages in settings.stages or range(2, group + 1):
            if stages > group or (settings.equal_replicas and group % stages):
                continue
            batch = settings.batch * group // settings.devices
            for micro_batches in settings.micro_batches or divisors(batch, 1, MOST_MICRO_BATCHES):
                for backbones in ways:
                    found = make_plan(
                        profile, backbones, settings, stages=stages, micro_batches=micro_batches, group=group, name=name
                    )
                    if found is not None and _fits(found, settings):
                        yield found


def best_plan(profile: Profile, settings: PlanSettings, name: str = "diffusionpipe") -> Plan | None:
    """Return the plan with the shortest expected iteration; None if no pipeline is feasible.

    Plans are filled in the order of their pipelines' times. The search ends when the next pipeline alone takes longer
    than the best filled plan.
    """
    found = list(plans(profile, settings, name))
    if not settings.fill:
        return min(found, key=lambda one: one.seconds, default=None)
    best: Plan | None = None
    for plan in sorted(found, key=lambda one: one.pipeline_s):
        if best is not None and plan.pipeline_s >= best.seconds:
            break
        one = filled(plan, profile, settings)
        if best is None or one.seconds < best.seconds:
            best = one
    return best


def divisors(number: int, least: int, most: int) -> Sequence[int]:
    """Return the divisors of a number within limits."""
    return [one for one in range(least, min(number, most) + 1) if number % one == 0]


def _fits(plan: Plan, settings: PlanSettings) -> bool:
    return settings.device_memory_bytes is None or max(plan.memory_bytes) <= settings.device_memory_bytes
