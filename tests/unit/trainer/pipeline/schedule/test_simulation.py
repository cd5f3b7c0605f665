"""The simulator: times that can be added by hand, T^max as an upper bound, bubbles with their devices."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.trainer.pipeline.costs.profile import Link
from services.trainer.pipeline.costs.stage_costs import Conditions
from services.trainer.pipeline.cuts.partition import partition
from services.trainer.pipeline.schedule.bubbles import Bubble, find_bubbles, idle_device_s
from services.trainer.pipeline.schedule.schedules import (
    bidirectional,
    candidates,
    gpipe,
    one_forward_one_backward,
    paired_rounds,
)
from services.trainer.pipeline.schedule.simulation import StageTimes, fastest, simulate, stage_times
from tests.unit.trainer.pipeline.profiles import backbone, profile


def test_transfers_and_synchronisation_are_added_by_hand() -> None:
    times = {
        (0, 0): StageTimes(forward_s=2, backward_s=4, sync_s=3),
        (0, 1): StageTimes(forward_s=1, backward_s=3, received_s=0.5, returned_s=0.25, sync_s=9),
    }
    played = simulate(one_forward_one_backward(2, 1), times)
    assert [(one.start_s, one.end_s) for one in played.places[0]] == [(0, 2), (6.75, 10.75)]
    assert [(one.start_s, one.end_s) for one in played.places[1]] == [(2.5, 3.5), (3.5, 6.5)]
    # stage 1: begins with its last backward pass and outlasts it; stage 0: hidden by its backward pass
    assert [(one.stage, one.start_s, one.end_s) for one in played.syncs] == [(0, 6.75, 10.75), (1, 3.5, 12.5)]
    assert (played.computed_s, played.end_s, played.busy_s) == (10.75, 12.5, (6, 4))


def test_the_feedback_of_self_conditioning_is_a_transfer() -> None:
    times = {(0, 0): StageTimes(1, 2, feedback_s=0.5), (0, 1): StageTimes(1, 2)}
    played = simulate(one_forward_one_backward(2, 1, self_conditioning=True), times)
    assert [one.start_s for one in played.places[0]] == [0, 2.5, 6.5]
    assert played.end_s == 8.5


def test_a_bubble_has_the_same_set_of_idle_devices() -> None:
    """Two stages on two devices each, unit slots: 1F1B of two micro-batches."""
    times = {(0, stage): StageTimes(1, 1) for stage in range(2)}
    found = find_bubbles(simulate(one_forward_one_backward(2, 2), times), (2, 2))
    assert found == [Bubble(0, 1, (2, 3)), Bubble(2, 3, (0, 1)), Bubble(4, 5, (0, 1)), Bubble(5, 6, (2, 3))]
    assert idle_device_s(found) == 4 * 2


def test_a_device_that_only_sums_gradients_is_idle() -> None:
    times = {(0, 0): StageTimes(1, 1, sync_s=3)}
    assert find_bubbles(simulate(gpipe(1, 2), times), (4,)) == [Bubble(4, 6, (0, 1, 2, 3))]


TIMES = st.lists(st.tuples(*[st.floats(0.1, 3)] * 2, *[st.floats(0, 2)] * 2), min_size=2, max_size=8)


@settings(max_examples=40)
@given(TIMES, st.integers(1, 4), st.integers(1, 10), st.sampled_from([0.0, 1.0]), st.sampled_from([1, 3]))
def test_t_max_is_an_upper_bound_of_the_simulated_time(
    layers: list[tuple[float, ...]], stages: int, micro_batches: int, chance: float, groups: int
) -> None:
    """Eqs. 1 and 18, with long transfers and synchronisation; the faster table of each kind is played."""
    forward, backward, sent, gradients = (list(values) for values in zip(*layers, strict=True))
    model = backbone(forward, backward, sent=sent, gradients=[4 * one for one in gradients])
    one = profile(model, p2p=Link(latency_s=0.1, bandwidth_bytes_per_s=2), bandwidth=1.0)
    on = Conditions(micro_batch=1, groups=groups, self_conditioning=chance)
    found = partition(one, [model], on, stages=stages, devices=stages, rounds=micro_batches)
    if found is None:
        assert stages > len(layers)
        return
    times = stage_times(one, [model], found, on)
    _, played = fastest(candidates(stages, micro_batches, 1, bool(chance)), times)
    assert played.end_s <= found.bound_s * (1 + 1e-9)


def test_plain_1f1b_exceeds_t_max_where_transfers_are_long() -> None:
    """The reason for `cover_transfers`: a stage that holds S − s micro-batches waits for each round trip."""
    times = {
        (0, 0): StageTimes(0.5, 0.5),
        (0, 1): StageTimes(0.5, 0.5, received_s=0.5, returned_s=0.5),
    }
    bound = 1.0 * (12 + 2 * 2 - 2)
    assert simulate(one_forward_one_backward(2, 12), times).end_s == pytest.approx(19)
    assert bound < 19
    assert simulate(one_forward_one_backward(2, 12, cover_transfers=True), times).end_s <= bound


def test_two_equal_directions_end_within_the_bound_of_eq_12() -> None:
    times = {(pipeline, stage): StageTimes(1, 2) for pipeline in range(2) for stage in range(4)}
    played = simulate(bidirectional(4, 4), times)
    assert played.end_s <= (paired_rounds(4, 4) + 2 * 4 - 2) * 3
    assert played.busy_s == (24,) * 4
