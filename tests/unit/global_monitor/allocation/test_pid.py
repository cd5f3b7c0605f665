"""A demand step settles without swinging at every period; the output stays within its bounds and unrounded."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.global_monitor.allocation import pid
from services.global_monitor.allocation.hysteresis import whole
from services.global_monitor.allocation.pid import Gains, PidState, advance

PERIODS_S = (5, 30, 60, 180, 300)


def course(start: int, target: float, period_s: float, minutes: float = 30, band: float = 0.25) -> list[int]:
    """Whole workers after each period, of 16."""
    state, now, counts = PidState(start), start, [start]
    for _ in range(int(minutes * 60 / period_s)):
        state = advance(state, target, period_s / 60, Gains(), 1, 16)
        now = whole(state.output, now, band, 1, 16)
        counts.append(now)
    return counts


@pytest.mark.parametrize("period_s", PERIODS_S)
@pytest.mark.parametrize(("start", "target"), [(16, 4), (4, 13), (2, 3), (16, 7.4), (1, 16), (8, 8.4)])
def test_a_step_settles_without_swinging(period_s: float, start: int, target: float) -> None:
    counts = course(start, target, period_s)
    moves = [after - before for before, after in pairwise(counts) if after != before]
    assert all(move > 0 for move in moves) or all(move < 0 for move in moves)  # never back
    assert abs(counts[-1] - target) <= 0.75
    settled = next(at for at, count in enumerate(counts) if count == counts[-1]) * period_s
    assert settled <= max(6 * 60, 2 * period_s)


@pytest.mark.parametrize("period_s", PERIODS_S)
def test_how_often_one_looks_changes_nothing(period_s: int) -> None:
    state = PidState(4)
    looks = max(120 // period_s, 1)
    for _ in range(looks):
        state = advance(state, 12, period_s / 60, Gains(), 1, 16)
    at_once = advance(PidState(4), 12, looks * period_s / 60, Gains(), 1, 16)
    assert state.output == pytest.approx(at_once.output, abs=1e-6)


@pytest.mark.parametrize("period_s", [5, 30, 60])
def test_a_demand_that_flickers_from_look_to_look_moves_nobody(period_s: float) -> None:
    state, now, seen = PidState(7.5), 7, set()
    for look in range(200):
        state = advance(state, 7 + look % 2, period_s / 60, Gains(), 1, 16)
        now = whole(state.output, now, 0.25, 1, 16)
        seen.add(now)
    assert seen == {7}


def test_at_its_bounds_nothing_winds_up() -> None:
    state = PidState(8)
    for _ in range(60):  # three hours of wanting more than there is
        state = advance(state, 40, 3, Gains(), 1, 16)
    assert (state.output, state.integral) == (16, 0)
    assert advance(state, 4, 3, Gains(), 1, 16).output < 8  # and it comes back at once


@given(st.floats(-5, 30), st.floats(-5, 30), st.floats(-50, 50), st.floats(0, 10))
def test_the_output_stays_in_its_bounds(output: float, target: float, integral: float, minutes: float) -> None:
    after = advance(PidState(output, target - output, integral), target, minutes, Gains(), 1, 16)
    assert 1 <= after.output <= 16


@given(st.floats(1, 16), st.floats(1, 16), st.floats(0.1, 10))
def test_it_goes_towards_the_target_and_not_beyond(start: float, target: float, minutes: float) -> None:
    after = advance(PidState(start), target, minutes, Gains(), 1, 16).output
    assert min(start, target) - 1e-9 <= after <= max(start, target) + 1e-9


def published(output: float, target: float, minutes: float, periods: int) -> list[float]:
    """The published code's controller, written here from its formula: dt enters I and D only."""
    gains, integral, before, outputs = Gains(), 0.0, 0.0, []
    for _ in range(periods):
        error = target - output
        integral += error * minutes
        derivative = (error - before) / minutes
        output, before = output + gains.p * error + gains.i * integral + gains.d * derivative, error
        outputs.append(output)
    return outputs


def ours(output: float, target: float, minutes: float, periods: int) -> list[float]:
    state, outputs = PidState(output), []
    for _ in range(periods):
        state = advance(state, target, minutes, Gains(), 1, 16)
        outputs.append(state.output)
    return outputs


def test_how_ours_differs_from_the_published_controller() -> None:
    """The module's docstring says these numbers: from 16 towards 6 at 180 s, recorded from the published code."""
    theirs, mine = published(16, 6, 3, 4), ours(16, 6, 3, 4)
    assert [round(one, 2) for one in theirs] == [8.33, 5.21, 4.00, 3.79]
    assert [round(one, 2) for one in mine] == [7.07, 6.00, 6.00, 6.00]
    said = " ".join((pid.__doc__ or "").split())
    for numbers in ("8.33, 5.21, 4.00 and 3.79", "7.07 and 6.00"):
        assert numbers in said
    # within 3 s: P moves the published output by 6 as within 3 minutes, I by .025 and D by 10
    assert published(16, 6, 0.05, 1)[0] == pytest.approx(16 - 6 - 0.025 - 10)
    assert 15.6 < ours(16, 6, 0.05, 1)[0] < 16
    # as far after 3 minutes of 3 s each as after one period of 3 minutes
    assert ours(16, 6, 0.05, 60)[-1] == pytest.approx(ours(16, 6, 3, 1)[0], abs=1e-6)


def test_hysteresis_is_left_only_by_more_than_half_and_the_band() -> None:
    assert whole(7.7, 7, 0.25, 1, 16) == 7
    assert whole(7.8, 7, 0.25, 1, 16) == 8
    assert whole(7.3, 8, 0.25, 1, 16) == 8
    assert whole(7.2, 8, 0.25, 1, 16) == 7
    assert whole(3.0, 3, 0.25, 1, 2) == 2
