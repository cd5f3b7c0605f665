"""A regression of step times survives its JSON, and says nothing outside of what it was measured on."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.errors import ModelError
from shared.models.step_regression import (
    StepRegression,
    features,
    mix_of,
    pixels,
    regression_from_json,
    regression_to_json,
)

SMALL, WIDE = (64, 64, 1), (96, 64, 1)
FOUND = StepRegression(
    resolutions=(SMALL, WIDE),
    most=4,
    layout="groups",
    mean=np.zeros(4),
    scale=np.array([1.0, 1.0, 1.0, 4096.0]),
    support=np.array([[1.0, 0.0, 1.0, 1.0], [0.0, 1.0, 1.0, 1.5]]),
    weights=np.array([1.0, 2.0]),
    gamma=0.5,
    intercept=0.25,
    error=0.1,
)


def test_the_papers_features_count_passes_resolutions_and_pixels() -> None:
    mix = mix_of([(WIDE, 2), (SMALL, 1), (SMALL, 2)])
    assert mix == ((SMALL, 3), (WIDE, 2))
    assert pixels(mix) == 3 * 4096 + 2 * 6144
    assert features(mix, (SMALL, WIDE, (96, 96, 1))) == [3, 2, 0, 2, pixels(mix)]


def test_the_kernel_is_evaluated_as_scikit_learn_does() -> None:
    # at the first support vector: 1 + 2 · exp(−½ · (1 + 1 + 0 + ¼)) + ¼
    assert FOUND.seconds(mix_of([(SMALL, 1)])) == pytest.approx(1.25 + 2 * math.exp(-1.125))


def test_nothing_is_said_about_other_sizes_or_larger_batches() -> None:
    assert FOUND.seconds(mix_of([(SMALL, 4)])) is not None
    assert FOUND.seconds(mix_of([(SMALL, 5)])) is None
    assert FOUND.seconds(mix_of([((96, 96, 1), 1)])) is None


@given(st.lists(st.tuples(st.sampled_from([SMALL, WIDE]), st.just(1)), min_size=1, max_size=4))
def test_json_keeps_every_prediction(passes: list[tuple[tuple[int, int, int], int]]) -> None:
    mix = mix_of(passes)
    again = regression_from_json(json.loads(json.dumps(regression_to_json(FOUND))))
    assert again.seconds(mix) == FOUND.seconds(mix)
    assert (again.layout, again.error) == (FOUND.layout, FOUND.error)


@pytest.mark.parametrize(
    "change", [{"weights": [1.0]}, {"mean": "x"}, {"scale": [0.0] * 4}, {"gamma": math.nan}, {"most": None}]
)
def test_wrong_arrays_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ModelError, match=r"step_seconds\.json"):
        regression_from_json(regression_to_json(FOUND) | change)
