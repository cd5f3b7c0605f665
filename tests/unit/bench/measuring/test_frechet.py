"""The Fréchet distance where its value is known in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from bench.measuring.frechet import Features, difference_of_distances, distance_of_halves, frechet_distance


def exactly(mean: Features, covariance: Features, count: int = 64, seed: int = 0) -> Features:
    """Rows whose sample mean and sample covariance are these to rounding."""
    rows = np.random.default_rng(seed).standard_normal((count, len(mean)))
    rows -= rows.mean(axis=0)
    white = rows @ np.linalg.inv(np.linalg.cholesky(np.cov(rows, rowvar=False))).T
    made: Features = white @ np.linalg.cholesky(covariance).T + mean
    return made


def test_equal_sets_and_a_shift() -> None:
    rows = np.random.default_rng(1).standard_normal((40, 8))
    assert frechet_distance(rows, rows) == pytest.approx(0.0, abs=1e-9)
    shift = np.arange(8.0) / 4
    assert frechet_distance(rows, rows + shift) == pytest.approx(shift @ shift)  # the covariances are the same
    assert frechet_distance(rows[::-1], rows + shift) == pytest.approx(shift @ shift)


def test_covariances_that_commute_differ_by_their_standard_deviations() -> None:
    first, second = np.diag([1.0, 4.0, 9.0]), np.diag([4.0, 4.0, 1.0])
    one, other = exactly(np.zeros(3), first), exactly(np.array([0.0, 2.0, 0.0]), second, seed=3)
    # |μ|² + Σ (σ₁ − σ₂)² = 4 + 1 + 0 + 4
    assert frechet_distance(one, other) == pytest.approx(9.0)
    assert frechet_distance(other, one) == pytest.approx(9.0)


def test_two_by_two_covariances_that_do_not_commute() -> None:
    """tr (AB)^½ of 2×2 matrices is √(tr AB + 2·√det AB)."""
    first, second = np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([[1.0, -0.5], [-0.5, 4.0]])
    product = first @ second
    together = np.sqrt(np.trace(product) + 2 * np.sqrt(np.linalg.det(product)))
    expected = np.trace(first) + np.trace(second) - 2 * together
    one, other = exactly(np.zeros(2), first), exactly(np.zeros(2), second, seed=5)
    assert frechet_distance(one, other) == pytest.approx(expected)
    assert expected > 0.1


def test_one_dimension_and_fewer_rows_than_dimensions() -> None:
    assert frechet_distance(np.array([[0.0], [2.0]]), np.array([[10.0], [10.0]])) == pytest.approx(81 + 2)
    few = np.random.default_rng(2).standard_normal((5, 20))
    assert frechet_distance(few, few) == pytest.approx(0.0, abs=1e-7)
    assert np.isfinite(frechet_distance(few, few[::-1] * 2))


def test_what_cannot_be_compared() -> None:
    for one, other in ((np.ones((3, 2)), np.ones((3, 4))), (np.ones((1, 2)), np.ones((3, 2)))):
        with pytest.raises(ValueError, match="both sets"):
            frechet_distance(one, other)


def test_halves_lie_around_the_whole_and_repeat() -> None:
    rng = np.random.default_rng(4)
    one, other = rng.standard_normal((400, 4)), rng.standard_normal((400, 4)) + 1.0
    low, high = distance_of_halves(one, other)
    assert low < high
    assert low < frechet_distance(one, other) * 1.2
    assert high > frechet_distance(one, other) * 0.8
    assert distance_of_halves(one, other) == (low, high)


def test_a_difference_of_distances_is_shown_only_where_there_is_one() -> None:
    rng = np.random.default_rng(5)
    reference = rng.standard_normal((400, 6))
    near, as_near, far = (rng.standard_normal((400, 6)) + shift for shift in (0.2, 0.2, 0.6))
    whole, low, high = difference_of_distances(far, near, reference)
    assert whole == pytest.approx(frechet_distance(far, reference) - frechet_distance(near, reference))
    assert 0 < low < whole < high
    _, low, high = difference_of_distances(as_near, near, reference)
    assert low < 0 < high


def test_the_interval_holds_the_true_difference_about_as_often_as_it_says() -> None:
    """Two systems of one distribution: their true difference is 0."""
    held = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        one, other, reference = (rng.standard_normal((120, 3)) + shift for shift in (0.4, 0.4, 0.0))
        _, low, high = difference_of_distances(one, other, reference, rounds=60)
        held += low <= 0 <= high
    assert 52 <= held <= 60
