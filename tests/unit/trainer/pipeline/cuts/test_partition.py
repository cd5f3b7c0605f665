"""Partitions equal exhaustive search on small instances, and keep what one (W, Y) per state would lose."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.trainer.pipeline.costs.profile import Backbone, Link, Profile
from services.trainer.pipeline.costs.stage_costs import Conditions, feedback_s, merged
from services.trainer.pipeline.cuts.partition import Partition, equal_layers, partition
from tests.unit.trainer.pipeline.profiles import backbone, profile


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    for ends in itertools.combinations(range(1, total), parts - 1):
        yield tuple(high - low for low, high in itertools.pairwise((0, *ends, total)))


def stage_costs_of(
    one: Profile, model: Backbone, layers: range, on: Conditions, replicas: int
) -> tuple[float, float, float]:
    """Return T_0, T_0 with self-conditioning and the gap of one stage, written as eqs. 3, 4, 5, 6 and 17 print them."""
    local = on.micro_batch / replicas
    forward = sum(model.forward_s(at, local) for at in layers)
    backward = sum(model.backward_s(at, local) for at in layers)
    sync = one.all_reduce_s(sum(model.layers[at].gradient_bytes for at in layers), replicas * on.groups)
    once = twice = 0.0
    if layers.start:
        sent, back = (model.layers[layers.start - 1].output_bytes_per_sample * local,) * 2
        rate, latency = one.p2p.bandwidth_bytes_per_s, one.p2p.latency_s
        once = on.transfer_factor * ((sent + back) / rate + 2 * latency)
        twice = on.transfer_factor * ((2 * sent + back) / rate + 3 * latency)
    return max(forward + backward, once), max(2 * forward + backward, twice), max(sync - backward, 0)


def exhaustive(
    one: Profile, models: Sequence[Backbone], on: Conditions, stages: int, devices: int, rounds: float, equal: bool
) -> float:
    """Return the least T^max over all cuts and numbers of replicas."""
    best = np.inf
    chance = on.self_conditioning
    back = max(feedback_s(one, model, on.micro_batch) for model in models)
    for replicas in compositions(devices, stages):
        if equal and len(set(replicas)) > 1:
            continue
        for cuts in itertools.product(*(compositions(len(model.layers), stages) for model in models)):
            worst = np.zeros(3)
            for number, (model, sizes) in enumerate(zip(models, cuts, strict=True)):
                ends = (0, *itertools.accumulate(sizes))
                for stage, (low, high) in enumerate(itertools.pairwise(ends)):
                    place = stage if number == 0 else stages - 1 - stage
                    worst = np.maximum(worst, stage_costs_of(one, model, range(low, high), on, replicas[place]))
            slots = rounds + 2 * stages - 2
            best = min(best, slots * ((1 - chance) * worst[0] + chance * worst[1]) + worst[2] + chance * back)
    return float(best)


TIMES = st.integers(1, 9).map(float)
BYTES = st.integers(0, 30).map(float)


@st.composite
def instances(draw: st.DrawFn, directions: int) -> tuple[Profile, list[Backbone], Conditions, int, int, int]:
    models = []
    for number in range(directions):
        count = draw(st.integers(2, 6 if directions == 1 else 4))
        lists = [draw(st.lists(kind, min_size=count, max_size=count)) for kind in (TIMES, TIMES, BYTES, BYTES)]
        models.append(backbone(lists[0], lists[1], name=f"b{number}", sent=lists[2], gradients=lists[3]))
    one = profile(*models, p2p=Link(latency_s=0.5, bandwidth_bytes_per_s=2), bandwidth=draw(st.sampled_from([0.5, 4])))
    on = Conditions(
        micro_batch=draw(st.sampled_from([1, 4])),
        groups=draw(st.integers(1, 2)),
        self_conditioning=draw(st.sampled_from([0.0, 0.5, 1.0])),
        transfer_factor=directions,
    )
    stages = draw(st.integers(1, min(3, *(len(model.layers) for model in models))))
    return one, models, on, stages, draw(st.integers(stages, 5)), draw(st.integers(1, 8))


def check(instance: tuple[Profile, list[Backbone], Conditions, int, int, int], equal: bool) -> None:
    one, models, on, stages, devices, rounds = instance
    found = partition(one, models, on, stages=stages, devices=devices, rounds=rounds, equal_replicas=equal)
    best = exhaustive(one, models, on, stages, devices, rounds, equal)
    if found is None:
        assert best == np.inf
        return
    assert found.bound_s == pytest.approx(best)
    assert sum(found.replicas) == devices
    worst = np.zeros(3)
    for number, model in enumerate(models):
        assert [at for stage in found.stages[number] for at in stage] == list(range(len(model.layers)))
        for stage, layers in enumerate(found.stages[number]):
            replicas = found.replicas[found.place_of(number, stage)]
            worst = np.maximum(worst, stage_costs_of(one, model, layers, on, replicas))
    assert (found.slowest_s, found.slowest_self_conditioned_s, found.gap_s) == pytest.approx(tuple(worst))


@settings(max_examples=40)
@given(instances(1), st.booleans())
def test_one_backbone_equals_exhaustive_search(
    instance: tuple[Profile, list[Backbone], Conditions, int, int, int], equal: bool
) -> None:
    check(instance, equal)


@settings(max_examples=20)
@given(instances(2), st.booleans())
def test_two_backbones_equal_exhaustive_search(
    instance: tuple[Profile, list[Backbone], Conditions, int, int, int], equal: bool
) -> None:
    check(instance, equal)


def test_the_best_sum_may_come_from_a_worse_pair_of_the_first_stages() -> None:
    """One (W, Y) per state loses: for the first four layers W = 2, Y = 19 gives a smaller sum than W = 3, Y = 9.5.

    The fifth layer makes W = 5 in any case, so that only Y matters.
    """
    model = backbone([0.5] * 4 + [2.5], [0.5] * 4 + [2.5], gradients=[10.0, 10.0, 0.0, 0.0, 0.0])
    one = profile(model, bandwidth=1.0)
    on = Conditions(micro_batch=1, groups=2)
    slots = 8 + 2 * 3 - 2

    def summed(*ends: int) -> float:
        pairs = [stage_costs_of(one, model, range(low, high), on, 1) for low, high in itertools.pairwise((0, *ends))]
        return slots * max(slowest for slowest, _, _ in pairs) + max(gap for _, _, gap in pairs)

    assert summed(2, 4) < summed(1, 4)
    found = partition(one, [model], on, stages=3, devices=3, rounds=8)
    assert found is not None
    assert found.stages == ((range(1), range(1, 4), range(4, 5)),)
    assert found.bound_s == slots * 5 + 9.5


def test_stages_that_do_not_fit_give_none_and_gpipe_counts_layers() -> None:
    model = backbone([1.0] * 5)
    on = Conditions(micro_batch=1)
    assert partition(profile(model), [model], on, stages=6, devices=6, rounds=4) is None
    assert partition(profile(model), [model], on, stages=2, devices=3, rounds=4) is None
    assert partition(profile(model), [model], on, stages=3, devices=2, rounds=4, equal_replicas=False) is None
    assert partition(profile(model), [model], on, stages=2, devices=3, rounds=4, equal_replicas=False) is not None
    cut = equal_layers(model, 2, 4)
    assert isinstance(cut, Partition)
    assert (cut.stages, cut.replicas) == (((range(3), range(3, 5)),), (2, 2))
    assert equal_layers(model, 6, 6) is None


def test_backbones_of_one_direction_become_one_chain() -> None:
    """Two backbones of three and two layers: cuts divide both at nearly the same share of their work."""
    one = backbone([1, 1, 1], name="a", sent=[5.0, 6.0, 7.0], gradients=1.0)
    two = backbone([3, 3], name="b", sent=[8.0, 9.0], gradients=2.0)
    chain, order = merged("a + b", (one, two), 1)
    assert [order[at] for at in range(5)] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]
    assert [layer.output_bytes_per_sample for layer in chain.layers] == [5, 13, 14, 6, 0]
    assert sum(layer.forward_s[0] for layer in chain.layers) == 9
    assert merged("a", (one,), 1)[0] is one


@pytest.mark.parametrize("equal", [True, False])
def test_sixty_layers_on_eight_devices_are_partitioned_fast(equal: bool) -> None:
    """Goal .5 s; bench.pipeline_simulated measures it. The guard is generous, for busy machines."""
    random = np.random.default_rng(3)
    model = backbone(
        list(random.uniform(1, 9, 60)), list(random.uniform(1, 9, 60)), sent=list(random.uniform(0, 5, 60)),
        gradients=list(random.uniform(0, 40, 60)),
    )  # fmt: skip
    one = profile(model, p2p=Link(latency_s=0.1, bandwidth_bytes_per_s=10), bandwidth=5.0)
    on = Conditions(micro_batch=8, groups=2, self_conditioning=0.5)
    start = time.process_time()
    found = partition(one, [model], on, stages=4, devices=8, rounds=8, equal_replicas=equal)
    assert found is not None
    assert time.process_time() - start < 5
