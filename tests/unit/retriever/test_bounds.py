"""Bounds: K tables measured at several T, for latents and images."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.retriever.bounds import IMAGE, LATENT, PAIR, ImageTables, Near, TableBound
from shared.models.card_lookup import find_card
from shared.models.k_table import FIG_10, Cell, KTable, Level, table_from_json, table_to_json
from shared.models.tables_in_force import ImageTable

CARD = find_card("noop:")
LOW = KTable((Level(5, 0.1), Level(10, 0.3), Level(20, 0.6)), source="measured")


def latent(similarity: float) -> Near:
    return Near(LATENT, similarity, run_by="large")


def image(similarity: float, run_by: str = "small") -> Near:
    return Near(IMAGE, similarity, made_by=("large", "w1"), run_by=run_by)


def test_a_table_of_the_same_t_counts_and_the_t_that_is_asked_for_is_scaled() -> None:
    of_ten = KTable((Level(2, 0.5), Level(6, 0.9)), steps=10)
    near = [latent(one) for one in (0.2, 0.66, 0.91, 0.99)]
    bound = TableBound({50: FIG_10, 10: of_ten})
    assert bound.latest(near, 50) == [0, 5, 20, 25]
    assert bound.latest(near, 10) == [0, 2, 6, 6]
    assert bound.latest(near, 25) == [0, 0, 0, 0]  # measured at no such T, and not asked for
    assert TableBound({50: FIG_10, 10: of_ten}, steps=25).latest(near, 25) == [0, 2, 10, 12]
    assert bound.latest([image(0.99)], 50) == [0]
    assert "0.200 is not above 0.650" in bound.why_not(near[:1], 50)
    assert "0.200 is not above 0.500" in bound.why_not(near[:1], 10)
    pair = Near(PAIR, 0.426, run_by="large")
    only_equal = TableBound({}, pairs=KTable((Level(5, 1.0),))).why_not([pair], 50)
    assert "0.426, the lower one of object and background, is too little: only equal parts" in only_equal
    assert "measured at T = 25" in bound.why_not(near[:1], 25)
    assert "too few to skip any" in TableBound({50: FIG_10}, steps=1).why_not(near[1:2], 1)


def test_few_steps_from_noise_need_a_measurement() -> None:
    safe = Cell(0, -1.0, 1.0, 512, 0.99, 0.98, safe=True)
    measured = KTable((), steps=10, noise=safe)
    assert [TableBound({}, noise=[10]).noise(steps) for steps in (25, 10, 5)] == [False, True, False]
    assert table_from_json(table_to_json(measured)) == measured
    assert "noise" not in table_to_json(FIG_10)


def test_images_take_the_table_of_their_pair_and_its_floor() -> None:
    tables = {
        "small": ImageTables(lambda name, weights: ImageTable(replace(LOW, floor=0.28))),
        "turbo": ImageTables(lambda name, weights: ImageTable(LOW), 10, CARD.step_near),
        "other": ImageTables(lambda name, weights: ImageTable(None, "never measured", misfit=True)),
    }
    bound = TableBound({}, tables)
    assert bound.latest([image(0.2), image(0.29), image(0.7), image(0.7, "other")], 50) == [0, 5, 20, 0]
    assert bound.latest([image(0.7, "turbo"), image(0.7)], 10) == [4, 0]
    assert bound.latest([image(0.7, "nobody"), latent(1.0)], 50) == [0, 0]
    assert (bound.note(image(0.7, "other")), bound.note(image(0.7))) == ("never measured", "")
    assert bound.why_not([image(0.7, "other")], 50) == "never measured"
    assert "0.200 is not above 0.280" in bound.why_not([image(0.2, "other"), image(0.2)], 50)


@pytest.mark.parametrize(("savings", "k"), [(0.0, 10), (0.5, 15), (1.0, 25)])
def test_the_knob_moves_every_threshold(savings: float, k: int) -> None:
    assert TableBound({50: FIG_10}, savings=savings).latest([latent(0.9)], 50) == [k]
