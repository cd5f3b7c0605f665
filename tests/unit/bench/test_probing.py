"""The attacker of `bench.probing` finds what gives a bit away, and nothing where nothing does; thresholds are drawn."""

from __future__ import annotations

import random

import pytest

from bench.probing.drawn_thresholds import LEAST, threshold
from bench.probing.guessing import Trial, calibration, guessed, wilson


@pytest.mark.parametrize(("told", "least", "most"), [(1.0, 0.97, 1.0), (0.6, 0.7, 0.9), (0.0, 0.4, 0.6)])
def test_an_attacker_is_right_as_often_as_what_it_sees_depends_on_the_bit(
    told: float, least: float, most: float
) -> None:
    """told: share of the attempts in which a text appears where the bit is 1."""
    draw, trials = random.Random(1), list[Trial]()
    for _ in range(600 + calibration(600)):
        bit = draw.random() < 0.5
        seen = {f"word {draw.randrange(30)}": 1.0, "seconds": draw.random()}
        trials.append(Trial(seen | ({"plan: #": 1.0} if bit and draw.random() < told else {}), bit))
    rate = guessed(trials, 600)
    assert rate.guesses == 600
    assert least <= rate.value <= most


def test_wilsons_interval_holds_the_share_and_shrinks() -> None:
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)  # Wilson's formula by hand
    assert wilson(0, 100)[0] == pytest.approx(0.0, abs=1e-9)
    low, high = wilson(5000, 10_000)
    assert high - low < 0.02


def test_a_threshold_is_drawn_once_for_each_entry_and_tenant_over_the_whole_range() -> None:
    drawn = [threshold(f"entry-{number}", "rival", 1.4) for number in range(1000)]
    assert drawn == [threshold(f"entry-{number}", "rival", 1.4) for number in range(1000)]
    assert drawn != [threshold(f"entry-{number}", "acme", 1.4) for number in range(1000)]
    assert LEAST <= min(drawn) < 0.67
    assert 1.38 < max(drawn) <= 1.4
    assert sum(one > 1.0 for one in drawn) / 1000 == pytest.approx(0.4 / 0.75, abs=0.05)
