"""The curve from similarity of prompts to similarity of text and picture, on vectors where it is known; and both ways
to search a cache of images."""

from __future__ import annotations

import numpy as np
import pytest

from bench.measuring.judging import Verdict
from bench.picture_similarity import checked, compared, examples_of, fitted, retrieved, scores_of


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


def test_the_two_ways_to_search_and_what_they_find() -> None:
    asked = unit(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1]]))
    # image 0 shows what prompt 1 asks for, and the other way round
    texts, images = np.eye(2), np.eye(2)[::-1]
    chosen = retrieved(asked, texts, images)
    assert {way: places.tolist() for way, places in chosen.items()} == {"text": [0, 1, 0], "image": [1, 0, 1]}

    def verdict(clip: float, right: int) -> Verdict:
        names = ("object", "background", "style", "light", "colour", "size", "position", "count")
        return Verdict(clip, {name: place < right for place, name in enumerate(names)})

    by = {
        "text": scores_of([verdict(0.1, 1), verdict(0.2, 8), verdict(0.3, 4)]),
        "image": scores_of([verdict(0.4, 6), verdict(0.5, 7), verdict(0.6, 4)]),
    }
    found = compared(by, chosen, np.array([7, 7, 8]))
    assert (found["prompts"], found["other_image"]) == (3, 1.0)
    clip, attributes = (found["scores"][name] for name in ("clip", "attributes"))
    assert clip["difference"] == pytest.approx(0.3)
    assert clip["difference_95"] == pytest.approx((0.3, 0.3))
    assert (attributes["text"], attributes["image"]) == (13 / 3, 17 / 3)
    assert (attributes["better"], attributes["worse"]) == (1 / 3, 1 / 3)
    low, high = attributes["difference_95"]  # one user's two prompts gain 4, the other's one nothing
    assert (low, high) == (0.0, 2.0)
    assert examples_of(by)[0] == 0  # the largest gain first …
    assert examples_of(by)[-1] == 1  # … and the largest loss last


def test_without_a_judge_net_the_clip_score_alone_is_compared() -> None:
    assert list(scores_of([Verdict(0.1), Verdict(0.2)])) == ["clip"]
