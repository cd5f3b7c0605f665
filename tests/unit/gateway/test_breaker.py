"""A failing service is left alone, then probed once."""

from __future__ import annotations

from services.gateway.breaker import Breaker


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker(failures=3, first_s=1.0, max_s=4.0)
    for _ in range(3):
        assert breaker.allows(now)
        breaker.failed(now)
    return breaker


def test_it_opens_after_three_failures_in_a_row_only() -> None:
    breaker = Breaker(failures=3)
    for _ in range(10):
        breaker.failed(0.0)
        breaker.failed(0.0)
        breaker.succeeded()
        assert breaker.allows(0.0)
    assert not opened().allows(0.5)


def test_one_probe_passes_and_closes_it_again_when_it_succeeds() -> None:
    breaker = opened()
    assert breaker.allows(1.0)
    assert not breaker.allows(1.0)  # the second caller does not wait for the probe
    breaker.succeeded()
    assert breaker.allows(1.0)


def test_failed_probes_double_the_wait_up_to_the_limit() -> None:
    breaker, now = opened(), 1.0
    for wait in (2.0, 4.0, 4.0):
        assert breaker.allows(now)
        breaker.failed(now)
        assert not breaker.allows(now + wait - 0.01)
        now += wait
    assert breaker.allows(now)
