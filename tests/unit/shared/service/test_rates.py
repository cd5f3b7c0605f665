"""Token buckets, and the rates that they keep."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.domain.errors import InvalidRequestError, RateLimitError
from shared.domain.identity import Rate, rate_of
from shared.service.rates import Buckets


def taken(buckets: Buckets, rate: Rate | None, now: float, name: str = "a") -> bool:
    try:
        buckets.check(name, rate, now)
    except RateLimitError:
        return False
    buckets.take(name, rate, now)
    return True


def test_a_burst_then_the_rate_and_each_key_for_itself() -> None:
    buckets, one = Buckets("key"), Rate(2.0, 3)
    assert [taken(buckets, one, 100.0) for _ in range(5)] == [True, True, True, False, False]
    with pytest.raises(RateLimitError, match=r"this key .* rate of 2/s, burst 3; retry in 0\.5 s") as refused:
        buckets.check("a", one, 100.0)
    assert refused.value.retry_after_s == pytest.approx(0.5)
    assert taken(buckets, one, 100.0, "b")
    assert [taken(buckets, one, at) for at in (100.4, 100.5, 100.6, 101.0)] == [False, True, False, True]
    assert [taken(buckets, one, 200.0) for _ in range(4)] == [True, True, True, False]
    buckets.tidy(200.5)
    assert not taken(buckets, one, 200.0), "a bucket that is not full stays"
    buckets.tidy(201.5)
    assert [taken(buckets, one, 201.5) for _ in range(4)] == [True, True, True, False]
    assert all(taken(buckets, None, 0.0) for _ in range(1000))


@settings(max_examples=50)
@given(
    st.floats(0.1, 100.0), st.integers(1, 20), st.lists(st.floats(0.0, 1.0), min_size=1, max_size=100)
)  # fmt: skip
def test_never_more_than_the_burst_and_the_rate(per_s: float, burst: int, gaps: list[float]) -> None:
    buckets, of, now, times = Buckets("key"), Rate(per_s, burst), 0.0, []
    for gap in gaps:
        now += gap
        if taken(buckets, of, now):
            times.append(now)
        else:
            assert times
    for first, start in enumerate(times):
        for last in range(first, len(times)):
            assert last - first + 1 <= burst + per_s * (times[last] - start) + 1e-6


@pytest.mark.parametrize(
    ("text", "burst", "rate", "said"),
    [
        ("2/s", 20, Rate(2.0, 20), "2/s, burst 20"),
        ("2.5/s", None, Rate(2.5, 25), "2.5/s, burst 25"),
        ("30/min", None, Rate(0.5, 5), "30/min, burst 5"),
        ("10/h", None, Rate(10 / 3600, 1), "10/h, burst 1"),
    ],
)
def test_rates_are_read_and_written(text: str, burst: int | None, rate: Rate, said: str) -> None:
    assert (rate_of(text, burst), str(rate)) == (rate, said)


@pytest.mark.parametrize("text", ["", "2", "0/s", "-1/s", "2/day", "1e9/s", "nan/s", "10001/s", "2/s "])
def test_other_texts_are_no_rate(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="rate: must be calls per s, min or h"):
        rate_of(text)
    with pytest.raises(InvalidRequestError, match="burst: must be from 1"):
        rate_of("2/s", 0)
