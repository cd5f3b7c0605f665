"""The exported forest: N in a row, one limit per cell, JSON, and when the one beside the weights may be used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.domain.errors import ModelError
from shared.domain.types import Size
from shared.models.card import ModelCard
from shared.models.card_lookup import card_for, write_card
from shared.models.step_reuse import FILE, StepReuse, read_step_reuse, reuse_from_json, reuse_to_json
from shared.runtime.settings import Settings
from tests import tiny

FOUND = StepReuse(
    weights_hash="w",
    layout="groups",
    patch_px=0,
    most=2,
    times=np.array([500.0]),
    limits=np.array([[[0.1, 0.2], [0.05, -np.inf], [0.01, 0.01]], [[np.inf, np.inf]] * 3]),
)


def decided(block: int, time: float, in_a_row: int, change: float) -> bool:
    return bool(FOUND.reused(block, [time], np.array([in_a_row]), [change])[0])


def test_a_border_between_times_belongs_to_the_earlier_interval() -> None:
    assert not decided(0, 500.0, 0, 0.15)
    assert decided(0, 500.001, 0, 0.15)


def test_a_limit_counts_as_reuse_and_more_does_not() -> None:
    assert decided(0, 0.0, 0, 0.099)
    assert not decided(0, 0.0, 0, 0.101)
    assert not decided(0, 900.0, 1, 0.0)  # never
    assert decided(1, 900.0, 1, 1e9)  # always


def test_a_change_that_is_not_a_number_is_computed() -> None:
    assert not decided(1, 0.0, 0, float("nan"))


def test_blocks_that_were_not_profiled_are_computed() -> None:
    assert not decided(2, 0.0, 0, 0.0)


@given(st.integers(0, 5), st.floats(0, 1000), st.floats(0, 1))
@settings(max_examples=50)
def test_at_most_n_reuses_in_a_row(in_a_row: int, time: float, change: float) -> None:
    assert decided(1, time, in_a_row, change) == (in_a_row < FOUND.most)


def test_json_keeps_every_limit_and_the_key() -> None:
    again = reuse_from_json(json.loads(json.dumps(reuse_to_json(FOUND), allow_nan=False)))
    np.testing.assert_array_equal(again.limits, FOUND.limits)
    assert again.key == FOUND.key
    assert replace(FOUND, quality={"images": 256}).key == FOUND.key
    assert replace(FOUND, most=1).key != FOUND.key


@pytest.mark.parametrize(
    "change",
    [
        {"times": [3, 1]}, {"limits": [[[1.0]]]}, {"most": -1}, {"most": float("inf")}, {"limits": []},
        {"layout": None, "most": "x"},
    ],
)  # fmt: skip
def test_another_value_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ModelError, match=r"step_reuse\.json"):
        reuse_from_json(reuse_to_json(FOUND) | change)


@pytest.mark.parametrize(
    ("family", "given", "why"),
    [
        ("unet", ("w", "groups", 0), ""),
        ("sd3", ("w", "groups", 0), ""),
        ("sd3", ("w", "packed", 16), ""),
        ("flux", ("w", "auto", 0), ""),
        ("animatediff", ("w", "groups", 0), "family must be one of unet, sd3, flux, sana (got animatediff)"),
        ("unet", ("other", "groups", 0), "must be of these weights, other (got w)"),
        ("unet", ("w", "patches", 16), "must be trained with layout patches and patch_px 16 (got groups, 0)"),
    ],
)
def test_the_forest_beside_the_weights(tmp_path: Path, family: str, given: tuple[str, str, int], why: str) -> None:
    (tmp_path / FILE).write_text(json.dumps(reuse_to_json(FOUND)))
    found, reason = read_step_reuse(tmp_path, family, *given)
    assert (found is None) == bool(why)
    assert why in reason


def test_no_file_a_broken_one_and_one_that_kept_no_quality(tmp_path: Path) -> None:
    given = "unet", "w", "groups", 0
    assert "afterimage profile --reuse" in read_step_reuse(tmp_path, *given)[1]
    (tmp_path / FILE).write_text("{")
    assert "cannot be read" in read_step_reuse(tmp_path, *given)[1]
    (tmp_path / FILE).write_text(json.dumps(reuse_to_json(replace(FOUND, most=0))))
    assert "no number of reuses" in read_step_reuse(tmp_path, *given)[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("reuse"), clip=False) / "large"


def test_regions_are_of_unets_and_of_no_card_file(model: Path, tmp_path: Path) -> None:
    settings = Settings(device="cpu", data_dir=tmp_path, regions="on", layout="patches")
    card, plain = card_for(str(model), settings), card_for(str(model), Settings(device="cpu", data_dir=tmp_path))
    assert (card.regions, plain.regions) == (True, False)
    assert card.compat(Size(64, 64), 20) == plain.compat(Size(64, 64), 20)
    assert not card_for("noop:", settings).regions
    write_card(card, tmp_path)
    assert "regions" not in json.loads((tmp_path / "card.json").read_bytes())


def test_reuse_is_part_of_compatibility(model: Path, tmp_path: Path) -> None:
    def card(**changes: object) -> ModelCard:
        return card_for(str(model), Settings(device="cpu", data_dir=tmp_path, **changes))  # type: ignore[arg-type]

    plain = card()
    (model / FILE).write_text(json.dumps(reuse_to_json(replace(FOUND, weights_hash=plain.weights_hash))))
    size = Size(64, 64)
    reusing = card(step_reuse="auto")
    assert reusing.step_reuse is not None
    assert reusing.compat(size, 10).step_reuse == reusing.reuse_key != ""
    assert str(reusing.compat(size, 10)) != str(plain.compat(size, 10))
    assert plain.compat(size, 10).step_reuse == plain.reuse_key == ""
    # batch_invariant keeps reuse off, and so does a layout that was not profiled
    for other in ({"batch_invariant": 4}, {"layout": "patches"}):
        assert card(step_reuse="auto", **other).compat(size, 10) == plain.compat(size, 10)
    assert reusing.weights_hash == plain.weights_hash
    write_card(reusing, tmp_path)
    assert "reuse" not in (tmp_path / "card.json").read_text()
