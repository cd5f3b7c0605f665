"""The curve from similarity of prompts to similarity of text and picture, on vectors where it is known."""

from __future__ import annotations

import numpy as np
import pytest

from bench.picture_similarity import checked, fitted


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def pairs(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Prompts about a few topics, and pictures that are half their prompt and half what all pictures share."""
    rng = np.random.default_rng(seed)
    topics = np.random.default_rng(0).standard_normal((6, 24))
    texts = unit(topics[rng.integers(0, 6, count)] + 0.6 * rng.standard_normal((count, 24)))
    shared = np.ones((1, 24)) / 24**0.5
    return texts, unit(texts + shared + 0.05 * rng.standard_normal((count, 24)))


def test_it_rises_from_the_unrelated_to_ones_own() -> None:
    curve, (unrelated, own) = fitted(*pairs(120, 1))
    assert list(curve.similarity) == sorted(curve.similarity)
    assert list(curve.share) == sorted(curve.share)
    assert curve.share[-1] == 1
    assert unrelated < own
    assert all(spread >= 0 for spread in curve.spread)


def test_it_holds_on_pictures_that_it_was_not_fitted_on() -> None:
    curve, ends = fitted(*pairs(120, 1))
    check = checked(curve, ends, *pairs(120, 2))
    assert check["correlation_of_mean"] > 0.8
    assert check["best_mean_of_surrogate"] == pytest.approx(check["best_mean"], abs=0.12)
    nonsense = checked(curve, ends, pairs(120, 2)[0], pairs(120, 3)[1])
    assert nonsense["correlation_of_mean"] < 0.5
