"""One plan: a partition with its schedule, played and filled, for one choice of S, M and D (DiffusionPipe Fig. 7)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from services.trainer.pipeline.costs.profile import Backbone, Profile
from services.trainer.pipeline.costs.stage_costs import Conditions
from services.trainer.pipeline.cuts.partition import Partition, equal_layers, partition, partition_each
from services.trainer.pipeline.filling.iteration import Filling, fill
from services.trainer.pipeline.filling.one_bubble import FrozenWork
from services.trainer.pipeline.schedule.bubbles import Bubble, find_bubbles, idle_device_s
from services.trainer.pipeline.schedule.memory import place_bytes
from services.trainer.pipeline.schedule.schedules import Schedule, candidates, gpipe, paired_rounds
from services.trainer.pipeline.schedule.simulation import Timeline, fastest, stage_times
from services.trainer.pipeline.settings import PlanSettings


@dataclass(frozen=True)
class Iteration:
    """One kind of iteration, with or without self-conditioning."""

    probability: float
    schedule: Schedule
    timeline: Timeline
    bubbles: tuple[Bubble, ...]
    frozen_s: float
    """The frozen part, data-parallel on all devices of the group."""
    filling: Filling | None = None
    """None: the frozen part runs before the pipeline, as in §2.4."""

    @property
    def seconds(self) -> float:
        """Return the time of the iteration."""
        return self.timeline.end_s + (self.frozen_s if self.filling is None else self.filling.rest_s)

    @property
    def idle_device_s(self) -> float:
        """Return the idle seconds that are left, summed over the devices of the group."""
        return idle_device_s(self.bubbles) - (0.0 if self.filling is None else self.filling.filled_device_s)

    @property
    def unfilled(self) -> Iteration:
        return replace(self, filling=None)


@dataclass(frozen=True)
class Plan:
    """One way to train, with its predicted figures."""

    name: str
    group: int
    """D: devices of one pipeline."""
    groups: int
    micro_batches: int
    """M of each direction."""
    batch: int
    """Samples of one group."""
    cut: Partition
    backbones: tuple[Backbone, ...]
    """One of each direction."""
    iterations: tuple[Iteration, ...]
    memory_bytes: tuple[float, ...]
    """Of a device at each place of the chain."""

    @property
    def stages(self) -> int:
        return len(self.cut.replicas)

    @property
    def seconds(self) -> float:
        """Return the expected time of an iteration."""
        return sum(one.probability * one.seconds for one in self.iterations)

    @property
    def pipeline_s(self) -> float:
        """Return the expected time of the pipeline alone: no filling makes an iteration shorter."""
        return sum(one.probability * one.timeline.end_s for one in self.iterations)

    @property
    def bubble_share(self) -> float:
        """Return the pipeline bubble ratio (§6): idle device time over all device time, of the expected iteration."""
        idle = sum(one.probability * one.idle_device_s for one in self.iterations)
        return idle / (self.seconds * self.group)

    @property
    def bubble_share_unfilled(self) -> float:
        """Return the same ratio with the frozen part before the pipeline."""
        whole = [one.unfilled for one in self.iterations]
        idle = sum(one.probability * one.idle_device_s for one in whole)
        return idle / (sum(one.probability * one.seconds for one in whole) * self.group)


def make_plan(
    profile: Profile,
    backbones: Sequence[Backbone],
    settings: PlanSettings,
    *,
    stages: int,
    micro_batches: int,
    group: int,
    name: str = "diffusionpipe",
) -> Plan | None:
    """Return the plan for one S, M and D, not filled yet; None if layers, devices or batch do not allow it.

    backbones: one, or the two of opposite directions. name "gpipe": equal numbers of layers and GPipe's schedule.
    """
    groups = settings.devices // group
    if settings.devices % group or settings.batch % groups:
        return None
    batch = settings.batch // groups
    if batch % micro_batches:
        return None
    conditions = Conditions(
        micro_batch=batch / micro_batches,
        groups=groups,
        cluster=settings.devices,
        self_conditioning=settings.self_conditioning,
        transfer_factor=len(backbones),
    )
    cuts = [
        cut
        for cut in _cuts(profile, backbones, settings, conditions, stages, micro_batches, group, name)
        if not any((batch / micro_batches) % replicas for replicas in cut.replicas)
    ]
    limit, frozen_s = settings.device_memory_bytes, profile.frozen_s(math.ceil(batch / group))
    found = []
    for cut in cuts:
        memory_of = partial(place_bytes, profile, backbones, cut, conditions.micro_batch)
        times = stage_times(profile, backbones, cut, conditions)
        played = []
        for chance, twice in ((1 - settings.self_conditioning, False), (settings.self_conditioning, True)):
            if chance:
                tables = _tables(name, stages, micro_batches, len(backbones), twice)
                fitting = [one for one in tables if not _exceeds(memory_of(one), limit)]
                table, timeline = fastest(fitting or tables, times)
                bubbles = tuple(find_bubbles(timeline, cut.replicas))
                played.append(Iteration(chance, table, timeline, bubbles, frozen_s))
        memory = tuple(max(one) for one in zip(*(memory_of(one.schedule) for one in played), strict=True))
        found.append(Plan(name, group, groups, micro_batches, batch, cut, tuple(backbones), tuple(played), memory))
    return min(found, key=lambda one: (_exceeds(one.memory_bytes, limit), one.pipeline_s), default=None)


def _exceeds(memory_bytes: Sequence[float], limit: float | None) -> bool:
    return limit is not None and max(memory_bytes) > limit


def _cuts(
    profile: Profile,
    backbones: Sequence[Backbone],
    settings: PlanSettings,
    conditions: Conditions,
    stages: int,
    micro_batches: int,
    group: int,
    name: str,
) -> list[Partition]:
    """Return the partitions among which the simulated time decides."""
    if name == "gpipe":
        found = [equal_layers(backbones[0], stages, group)]
    elif len(backbones) == 1:
        found = [
            partition(
                profile, backbones, conditions, stages=stages, devices=group, rounds=micro_batches,
                equal_replicas=settings.equal_replicas, whole_samples=True,
            )
        ]  # fmt: skip
    else:
        rounds = paired_rounds(stages, micro_batches)
        found = [
            partition(
                profile, backbones, conditions, stages=stages, devices=group, rounds=rounds,
                equal_replicas=settings.equal_replicas, whole_samples=True,
            ),
            partition_each(profile, backbones, conditions, stages=stages, devices=group, rounds=rounds),
        ]  # fmt: skip
    return [one for one in found if one is not None]


def _tables(name: str, stages: int, micro_batches: int, pipelines: int, twice: bool) -> tuple[Schedule, ...]:
    """Return the tables among which profiled times decide."""
    if name == "gpipe":
        return (gpipe(stages, micro_batches, self_conditioning=twice),)
    return candidates(stages, micro_batches, pipelines, twice)


def filled(plan: Plan, profile: Profile, settings: PlanSettings) -> Plan:
    """Return the plan with its bubbles filled."""
    work = FrozenWork(profile.frozen, plan.batch, plan.group, settings.local_sizes)
    iterations = tuple(
        replace(
            one,
            filling=fill(one.bubbles, work, minimum_bubble_s=settings.minimum_bubble_s, beam_width=settings.beam_width),
        )
        for one in plan.iterations
    )
    return replace(plan, iterations=iterations)
