"""Partition of one backbone, or of two in opposite directions, into stages on a chain of devices (DiffusionPipe §4)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.trainer.pipeline.costs.profile import Backbone, Profile
from services.trainer.pipeline.costs.stage_costs import Conditions, feedback_s, mirrored, stage_costs
from services.trainer.pipeline.cuts.cut_search import Cuts, best_cuts
from shared.domain.errors import InvalidRequestError


@dataclass(frozen=True)
class Partition:
    """Stages of each pipeline: one, or the down and the up pipeline."""

    stages: tuple[tuple[range, ...], ...]
    """For each pipeline, in forward order, the layers of its stages."""
    replicas: tuple[int, ...]
    """Devices of each place in the chain; the up pipeline's first stage is at the last place."""
    slowest_s: float
    """W: T_0, the largest time of a micro-batch in a stage, or of a transfer (eq. 3)."""
    slowest_self_conditioned_s: float
    """The same with the second forward pass (eq. 17)."""
    gap_s: float
    """Y: the largest part of a synchronisation that computation does not hide (eq. 6)."""
    bound_s: float
    """T^max, or its expectation over the probability of self-conditioning (eqs. 1, 12, 18)."""

    def place_of(self, pipeline: int, stage: int) -> int:
        """Return the place of a stage in the chain."""
        return stage if pipeline == 0 else len(self.replicas) - 1 - stage


def partition(
    profile: Profile,
    backbones: Sequence[Backbone],
    conditions: Conditions,
    *,
    stages: int,
    devices: int,
    rounds: float,
    equal_replicas: bool = True,
    whole_samples: bool = False,
) -> Partition | None:
    """Return the partition with the least T^max; None if the devices or layers do not allow so many stages.

    backbones: one, or the down and the up pipeline's. rounds: M, or M_CDM for two backbones. equal_replicas: every
    stage has devices / stages devices (footnote 2); otherwise each stage may have a number of its own. whole_samples:
    each of these numbers divides the micro-batch.
    """
    if len(backbones) not in (1, 2):
        raise InvalidRequestError(
            "backbones", "give one, or two that already are groups of one direction", len(backbones)
        )
    if stages > devices or (equal_replicas and devices % stages):
        return None
    allowed = [devices // stages] if equal_replicas else range(1, devices - stages + 2)
    costs = {}
    for replicas in allowed:
        if whole_samples and conditions.micro_batch % replicas:
            continue
        arrays = [stage_costs(profile, one, conditions, replicas) for one in backbones]
        costs[replicas] = [array if number == 0 else mirrored(array) for number, array in enumerate(arrays)]
    if not costs:
        return None
    slots = rounds + 2 * stages - 2
    chance = conditions.self_conditioning
    cuts = best_cuts(costs, (slots * (1 - chance), slots * chance, 1.0), stages, devices)
    if cuts is None:
        return None
    feedback = max(feedback_s(profile, one, conditions.micro_batch) for one in backbones)
    slowest, with_feedback, gap = cuts.worst
    return Partition(
        _stages(cuts, backbones), cuts.replicas, slowest, with_feedback, gap, cuts.total + chance * feedback
    )


def partition_each(
    profile: Profile,
    backbones: Sequence[Backbone],
    conditions: Conditions,
    *,
    stages: int,
    devices: int,
    rounds: float,
) -> Partition | None:
    """Return two backbones that are each cut for themselves, with equal replicas.

    Beyond the paper. Eqs. 14 and 15 bound only the slower backbone, so any cuts of the faster one below this bound are
    as good for T^max, and one device may get much more work than another. Cut for itself, each backbone is balanced,
    and W is the same.
    """
    found = [partition(profile, [one], conditions, stages=stages, devices=devices, rounds=rounds) for one in backbones]
    cuts = [one for one in found if one is not None]
    if len(cuts) < len(backbones):
        return None
    slowest = max(one.slowest_s for one in cuts)
    twice = max(one.slowest_self_conditioned_s for one in cuts)
    gap = max(one.gap_s for one in cuts)
    chance = conditions.self_conditioning
    feedback = max(feedback_s(profile, one, conditions.micro_batch) for one in backbones)
    bound = (rounds + 2 * stages - 2) * ((1 - chance) * slowest + chance * twice) + gap + chance * feedback
    return Partition(tuple(one.stages[0] for one in cuts), cuts[0].replicas, slowest, twice, gap, bound)


def equal_layers(backbone: Backbone, stages: int, devices: int) -> Partition | None:
    """Return stages with equal numbers of layers, as GPipe cuts a model; the first stages have one more of a rest.

    The bounds are not computed: nan.
    """
    count = len(backbone.layers)
    if devices % stages or stages > count:
        return None
    ends = [-(-count * at // stages) for at in range(stages + 1)]
    ranges = tuple(range(low, high) for low, high in itertools.pairwise(ends))
    return Partition((ranges,), (devices // stages,) * stages, np.nan, np.nan, np.nan, np.nan)


def _stages(cuts: Cuts, backbones: Sequence[Backbone]) -> tuple[tuple[range, ...], ...]:
    found = []
    for number, backbone in enumerate(backbones):
        ends = [0, *(one[number] for one in cuts.ends)]
        places = [range(low, high) for low, high in itertools.pairwise(ends)]
        if number == 1:  # counted from the last layer, see `mirrored`
            count = len(backbone.layers)
            places = [range(count - one.stop, count - one.start) for one in reversed(places)]
        found.append(tuple(places))
    return tuple(found)
