"""An assignment as lanes: nobody's lane is left alone, and hits go to who should refine them."""

from __future__ import annotations

import itertools

import pytest

from services.gpu_worker.models.model_assignment import ModelAssignment, lanes, preferred, used
from shared.domain.messages import WorkersAssigned, lane_of, refine_lane

SERVED = ("large", "sdxl", "sana")
LARGE, SDXL, SANA, REFINE = lane_of("large"), lane_of("sdxl"), lane_of("sana"), refine_lane()


def duty(model: str, *others: str, mode: str = "quality") -> ModelAssignment:
    return ModelAssignment(model, frozenset({model, *others}), mode)


def test_a_worker_with_the_large_model_draws_misses_first_and_refines_as_the_mode_says() -> None:
    assert lanes(duty("large", "sdxl"), SERVED, SERVED) == (LARGE, REFINE, SANA)
    assert lanes(duty("large", "sdxl", mode="throughput"), SERVED, SERVED) == (LARGE, SANA)
    assert lanes(duty("large", mode="throughput"), SERVED, ["large"]) == (LARGE, REFINE)


def test_a_worker_with_a_small_model_refines_in_both_modes() -> None:
    for mode in ("quality", "throughput"):
        assert lanes(duty("sdxl", "large", mode=mode), SERVED, ["sdxl"]) == (SDXL, REFINE)


def test_with_one_model_served_there_is_one_lane() -> None:
    assert lanes(duty("large"), ["large"], ["large"]) == (LARGE,)


def test_a_worker_alone_takes_from_every_lane_whose_model_it_has() -> None:
    assert lanes(duty("large"), SERVED, SERVED) == (LARGE, REFINE, SDXL, SANA)
    assert lanes(duty("large"), SERVED, ["large", "sana"]) == (LARGE, REFINE, SANA)


@pytest.mark.parametrize("mode", ["quality", "throughput"])
def test_no_lane_is_nobodys_where_all_models_are_loaded(mode: str) -> None:
    for models in itertools.product(SERVED, repeat=3):
        taken = {lane for model in models for lane in lanes(duty(model, *models, mode=mode), SERVED, SERVED)}
        assert taken == {LARGE, SDXL, SANA, REFINE}


def test_what_an_image_hit_is_drawn_with() -> None:
    assert preferred(duty("large"), SERVED, SERVED) == ("large",)  # quality: the large model refines
    assert preferred(duty("large", mode="throughput"), SERVED, ["large", "sdxl"]) == ("sdxl", "large")
    assert preferred(duty("large", "sdxl", mode="throughput"), SERVED, SERVED) == ("large",)
    assert preferred(duty("sana", "large"), SERVED, SERVED) == ("sana",)


def test_the_models_that_it_draws_with() -> None:
    assert used(duty("large"), SERVED, SERVED) == SERVED
    assert used(duty("large", "sdxl"), SERVED, SERVED) == ("large", "sana")
    assert used(duty("sana", "large"), SERVED, ["sana", "large"]) == ("sana",)


def test_the_monitors_word() -> None:
    told = WorkersAssigned((("a", "large"), ("b", "sana")), "throughput")
    assert duty("large").after(told, "b") == ModelAssignment("sana", frozenset({"large", "sana"}), "throughput")
    assert duty("sdxl").after(told, "new") == ModelAssignment(
        "sdxl", frozenset({"large", "sana", "sdxl"}), "throughput"
    )
