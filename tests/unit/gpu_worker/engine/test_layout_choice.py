"""`layout=auto` takes the faster layout of each mix: by the profile, then by trials."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gpu_worker.engine.layout_choice import ENOUGH, ERROR, PRIOR, TRIED_EVERY, LayoutChoice, Ran
from shared.models.layout_costs import LayoutCosts
from shared.models.step_regression import Mix, mix_of

SMALL, WIDE, LARGE = (64, 64, 1), (96, 64, 1), (96, 96, 1)
MIX, OTHER = mix_of([(SMALL, 2), (WIDE, 1)]), mix_of([(SMALL, 1), (LARGE, 3)])
LAUNCH_BOUND = LayoutCosts("patches", "a GPU", (0.02, 0.0, 0.1, 0.0), (0.02, 0.0, 0.12, 0.0), 0.1, 0.0)
"""Each batch costs 20 ms: one batch is faster."""
CPU = LayoutCosts("patches", "cpu", (0.002, 0.0, 2.0, 0.0), (0.003, 0.0, 2.6, 0.0), 0.1, 1.0)


def run(choice: LayoutChoice, mix: Mix, steps: int, mixed_ratio: float, slower: float = 1.0) -> list[bool]:
    """Run steps; one batch takes `mixed_ratio` seconds where groups take one."""
    ran = []
    for _ in range(steps):
        together = choice.together(mix)
        choice.took(Ran(mix, together, slower * (mixed_ratio if together else 1.0)))
        ran.append(together)
    return ran


@pytest.mark.parametrize(("costs", "together"), [(LAUNCH_BOUND, True), (CPU, False)])
def test_the_profile_decides(costs: LayoutCosts, together: bool) -> None:
    ratio = costs.ratio(MIX)
    assert ratio is not None
    assert (ratio < 1) is together
    assert run(LayoutChoice(costs.ratio, costs.error), MIX, 3, ratio) == 3 * [together]


def test_without_a_profile_it_begins_with_groups() -> None:
    assert run(LayoutChoice(), MIX, TRIED_EVERY, PRIOR) == TRIED_EVERY * [False]


def test_trials_find_that_one_batch_is_faster_here_and_for_other_mixes() -> None:
    choice = LayoutChoice()
    ran = run(choice, MIX, 3 * (TRIED_EVERY + 2), 0.7)
    assert ran[-1]
    assert ran.index(True) == TRIED_EVERY
    assert choice.together(OTHER)  # a mix that never ran


def test_the_first_step_in_one_batch_compiles_kernels_and_decides_nothing() -> None:
    choice, compiled, ran = LayoutChoice(), False, []
    for _ in range(5 * TRIED_EVERY):
        together = choice.together(MIX)
        choice.took(Ran(MIX, together, 1.0 if not together else 0.5 if compiled else 30.0))
        compiled = compiled or together
        ran.append(together)
    assert ran[-1]


def test_a_layout_that_loses_clearly_is_not_tried() -> None:
    choice = LayoutChoice(lambda _: 1 + 2 * ERROR)
    assert not any(run(choice, MIX, 10 * TRIED_EVERY, 1.0))


def test_trials_are_rare_and_stop_for_a_mix_that_they_decided() -> None:
    choice = LayoutChoice()
    ran = run(choice, MIX, 40 * TRIED_EVERY, 2.0)
    assert 1 <= sum(ran) <= ENOUGH
    assert sum(run(LayoutChoice(), MIX, 1000, 1.05)) <= 1000 / TRIED_EVERY


def test_a_wrong_profile_is_corrected() -> None:
    choice = LayoutChoice(lambda _: 0.95)
    ran = run(choice, MIX, 200, 1.5)
    assert ran[0]
    assert not any(ran[-20:])


@settings(max_examples=20)
@given(speeds=st.lists(st.floats(0.1, 10), min_size=2, max_size=6))
def test_a_machine_that_changes_its_speed_between_mixes_changes_no_decision(speeds: list[float]) -> None:
    """Steps of different mixes, or of one layout, are never compared."""
    choice = LayoutChoice(CPU.ratio, CPU.error)
    for number, slower in enumerate(speeds):
        assert not any(run(choice, (MIX, OTHER)[number % 2], 10, 1.2, slower))


@settings(max_examples=30)
@given(truth=st.floats(0.5, 2.0), profile=st.floats(0.8, 1.25))
def test_the_cost_of_a_wrong_start_is_bounded(truth: float, profile: float) -> None:
    """Over 2,000 steps of a mix auto is within 5 % of the better layout, however wrong a close profile is."""
    ran = run(LayoutChoice(lambda _: profile, 0.25), MIX, 2000, truth)
    taken = sum(truth if together else 1.0 for together in ran)
    assert taken <= 1.05 * 2000 * min(truth, 1.0)


def test_a_decision_takes_far_less_than_a_millisecond() -> None:
    choice = LayoutChoice(CPU.ratio, CPU.error)
    begun = time.process_time()
    for _ in range(200):
        choice.together(MIX)
    assert (time.process_time() - begun) / 200 < 0.5e-3
