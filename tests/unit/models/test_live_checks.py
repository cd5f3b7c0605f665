"""Verdicts on hits, and the tests that stop reuse: valid at any time, and soon sure."""

from __future__ import annotations

import math
from itertools import product

import pytest

from shared.models.confidence import ratio_bounds
from shared.models.live_checks import (
    ERROR,
    HEALTHY,
    LIMITS,
    Checks,
    Evidence,
    Sums,
    checks_from_json,
    checks_to_json,
    failures,
    newly_stopped,
)
from shared.models.quality import Measures

NOISE = Measures(score=0.4, contrast=50.0, saturation=80.0, sharpness=10.0)
BAD = Measures(score=0.1, contrast=50.0, saturation=80.0, sharpness=10.0)
EDIT, TOPIC = ("edit", "latent", 50, 15), ("topic", "latent", 50, 15)


def after(checks: Checks, good: int, bad: int, place: tuple[str, str, int, int] = EDIT) -> Checks:
    for number in range(good + bad):
        checks = checks.after(place, NOISE if number < good else BAD, NOISE, now=100.0 + number)
    return checks


def test_a_hit_fails_by_each_measure_of_which_it_keeps_too_little() -> None:
    assert failures(NOISE, NOISE) == ()
    assert failures(BAD, NOISE) == ("score",)
    pale = Measures(score=0.4, contrast=0.9 * LIMITS["contrast"] * 50, saturation=80.0, sharpness=None)
    assert failures(pale, NOISE) == ("contrast",)
    assert failures(BAD, Measures(score=0.0)) == ()  # nothing to keep


@pytest.mark.parametrize("rate", [HEALTHY, HEALTHY / 2])
def test_the_evidence_never_grows_on_average_while_hits_are_healthy(rate: float) -> None:
    mean = 0.0
    for verdicts in product((False, True), repeat=9):
        evidence = Evidence()
        for failed in verdicts:
            evidence = evidence.after(failed)
        mean += math.prod(rate if failed else 1 - rate for failed in verdicts) * evidence.value
    assert mean == pytest.approx(1.0) if rate == HEALTHY else mean < 1.0


@pytest.mark.parametrize("good", [0, 100, 3000])
def test_failures_stop_reuse_soon_however_late_they_begin(good: int) -> None:
    evidence = Evidence()
    for _ in range(good):
        evidence = evidence.after(False)
    assert evidence.value <= 1
    for _ in range(12):
        evidence = evidence.after(True)
    assert evidence.value > 2 / ERROR
    for _ in range(1000):
        evidence = evidence.after(True)
    assert math.isfinite(evidence.value)


def test_a_cell_stops_its_k_and_later_ones_and_all_hits_stop_everything() -> None:
    one = after(after(Checks(), 0, 5), 200, 0, TOPIC)
    assert one.stopped == ()
    two = after(one, 0, 4)
    (cell,) = two.stopped
    assert (cell.place, cell.checks, cell.fails) == (EDIT, 9, 9)
    assert cell.stopped_at
    assert two.first_stopped("edit", "latent", 50) == cell
    assert [two.first_stopped(*place) for place in (TOPIC[:3], ("edit", "image", 50), ("edit", "latent", 5))] == [
        None
    ] * 3
    three = after(two, 0, 40, TOPIC)
    assert three.all.stopped_at
    assert three.first_stopped("other", "image", 5) == three.all
    assert three.all.checks == 249
    assert list(newly_stopped(two, three)) == [three.all, three.cells[1]]
    assert checks_from_json(checks_to_json(three)) == three
    assert checks_from_json({"all": 3}) == checks_from_json(None) == Checks()


def test_sums_give_the_bounds_of_the_pairs_themselves() -> None:
    hits, noise = [0.3, 0.42, 0.38, 0.5], [0.35, 0.4, 0.41, 0.52]
    sums = Sums()
    for pair in zip(hits, noise, strict=True):
        sums = sums.plus(*pair)
    value, *bounds = sums.ratio(len(hits))
    assert value == pytest.approx(sum(hits) / sum(noise))
    assert bounds == pytest.approx(ratio_bounds(hits, noise))
    assert sums.ratio(2)[1:] == (-math.inf, math.inf)
