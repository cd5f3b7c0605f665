"""Arrival processes: the rates they promise, in order, and equal for equal seeds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.arrivals import offered, poisson, ramp, trace
from shared.domain.errors import InvalidRequestError

RATES = st.floats(0.01, 50)


@given(RATES, st.integers(0, 200), st.integers(0, 5))
def test_arrivals_are_in_order_and_repeat_with_the_seed(rate: float, count: int, seed: int) -> None:
    times = poisson(rate, count, seed)
    assert len(times) == count
    assert times == sorted(times)
    assert times == poisson(rate, count, seed)


def test_poisson_has_its_rate_and_its_spread() -> None:
    times = poisson(4.0, 20_000, seed=1)
    gaps = [later - earlier for earlier, later in zip([0.0, *times], times, strict=False)]
    assert len(times) / times[-1] == pytest.approx(4.0, rel=0.03)
    # the gaps of a Poisson process have a standard deviation equal to their mean
    assert (sum((gap - 0.25) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(0.25, rel=0.05)


@given(st.floats(0, 20), st.floats(0, 20), st.floats(1, 100))
def test_a_ramp_stays_in_its_time(start: float, end: float, duration: float) -> None:
    if start + end <= 0:
        return
    times = ramp(start, end, duration, seed=3)
    assert times == sorted(times)
    assert all(0 <= time <= duration for time in times)


def test_a_ramp_rises() -> None:
    times = ramp(0.0, 100.0, 100.0, seed=2)
    # Λ(t) = t²/2: a quarter of the arrivals in the first half, 5,000 in all
    assert len(times) == pytest.approx(5000, rel=0.05)
    assert sum(time < 50 for time in times) / len(times) == pytest.approx(0.25, abs=0.02)


def test_a_flat_ramp_is_poisson() -> None:
    assert len(ramp(10.0, 10.0, 1000.0, seed=4)) == pytest.approx(10_000, rel=0.05)


def test_a_recorded_trace_keeps_its_gaps() -> None:
    assert trace([10.0, 12.0, 20.0], speed=2.0) == [0.0, 1.0, 5.0]


def test_arrivals_are_named_in_words() -> None:
    assert len(offered("poisson:10", 1000.0, seed=4)) == pytest.approx(10_000, rel=0.05)
    assert offered("ramp:0:20", 60.0, seed=3) == ramp(0.0, 20.0, 60.0, seed=3)
    assert offered("trace", 4.0, [10.0, 12.0, 20.0], speed=2.0) == [0.0, 1.0]


@pytest.mark.parametrize(
    "words", ["", "poisson", "poisson:", "poisson:fast", "poisson:1:2", "ramp:1", "trace:2", "bursts:1"]
)
def test_other_words_are_refused(words: str) -> None:
    with pytest.raises(InvalidRequestError, match="poisson:RATE"):
        offered(words, 1.0, [0.0])


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: poisson(0.0, 1), "rate_per_s"),
        (lambda: poisson(float("nan"), 1), "rate_per_s"),
        (lambda: ramp(-1.0, 1.0, 1.0), "from_per_s"),
        (lambda: ramp(0.0, 0.0, 1.0), "to_per_s"),
        (lambda: ramp(1.0, 1.0, 0.0), "duration_s"),
        (lambda: trace([0.0], speed=0.0), "speed"),
        (lambda: trace([1.0, 0.0]), "recorded_s"),
    ],
)
def test_what_is_no_process_is_refused_by_name(call: object, named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        call()  # type: ignore[operator]  # the table holds lambdas
