"""The learned bound: what it recognises, what it allows, and which weights it counts for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from services.retriever.bounds import IMAGE, LATENT, Near, TableBound
from services.retriever.learned import LearnedBound, features
from shared.catalog import open_catalog
from shared.domain.types import Relation
from shared.models.card_lookup import BUNDLED, find_card
from shared.models.k_table import FIG_10, EncoderId
from shared.models.learned_table import (
    KIND,
    LearnedTable,
    learned_for,
    learned_from_json,
    learned_to_json,
    load_learned,
    read_learned,
    shipped_learned,
)

FOX = "a small red fox in the snow at night, pixel art"


@pytest.fixture(scope="module")
def table() -> LearnedTable:
    return read_learned(BUNDLED / "large" / "learned_bound.json")


def near(similarity: float, after: str, relation: str = Relation.EDIT, before: str = FOX) -> Near:
    return Near(LATENT, similarity, relation, before, after, run_by="large")


def test_a_reworded_prompt_starts_late_and_an_unrelated_one_from_noise(table: LearnedTable) -> None:
    same, reworded = near(1.0, FOX), near(0.98, "pixel art of a small red fox in the snow at night")
    count = near(0.9, "two small red foxes in the snow at night, pixel art")
    light = near(0.88, "a small red fox in the snow by day, pixel art")
    other = near(-0.2, "a sketch of two large sailboats under water, on the left")
    for steps in (5, 10, 50):
        ks = LearnedBound(table).latest([same, reworded, count, light, other], steps)
        assert ks[0] >= ks[1] >= ks[2] >= ks[3] >= ks[4] == 0
        assert ks[1] >= steps // 2
        assert ks[3] < ks[1]
        assert all(k < steps for k in ks)


def test_copying_is_bounded_except_for_edits(table: LearnedTable) -> None:
    """Starts whose look and attributes hold."""
    change = table.levels[50].change.copy()
    change[..., :-1] = 0.0
    only_copies = replace(table, levels={50: replace(table.levels[50], change=change)}, floor=-1.0)
    topic = "a sketch of two large sailboats under water, on the left"
    bound = LearnedBound(only_copies)
    for one in (near(-0.2, topic), near(0.9, FOX.replace("small", "large"))):
        strange = one._replace(relation=Relation.OTHER, may_copy=False)
        assert bound.latest([one], 50)[0] > bound.latest([strange], 50)[0]
        assert "variation=same" in bound.why_not([strange], 50)


def test_unknown_words_count_as_the_worst_kind_of_change(table: LearnedTable) -> None:
    known, unknown = near(0.9, FOX.replace("small", "large")), near(0.9, FOX.replace("small", "zyx"))
    ks = LearnedBound(table).latest([known, unknown], 10)
    assert ks[0] > ks[1]
    assert features([known, unknown], table.knots, table.places)[1].tolist() == [0.0, 0.5]


def test_nothing_starts_at_or_below_the_floor(table: LearnedTable) -> None:
    bound = LearnedBound(replace(table, floor=0.95))
    low, high = near(0.95, FOX), near(0.96, FOX)
    assert [k > 0 for k in bound.latest([low, high], 50)] == [False, True]
    assert "0.950 is not above 0.950" in bound.why_not([low], 50)


def test_the_knob_and_alpha_move_what_is_allowed(table: LearnedTable) -> None:
    some = [near(0.9, FOX.replace("red", "blue")), near(0.9, FOX.replace("small ", "large "))]
    ks = [sum(LearnedBound(table, savings=savings).latest(some, 50)) for savings in (0.0, 0.5, 1.0)]
    assert ks == sorted(ks)
    assert ks[0] < ks[2]
    strict = LearnedBound(table, alpha=0.99).latest(some, 50)
    assert sum(strict) <= ks[1]


def test_another_t_takes_the_smaller_share_of_its_neighbours(table: LearnedTable) -> None:
    bound, some = LearnedBound(table), [near(0.98, "pixel art of a small red fox in the snow at night")]
    ten, fifty = bound.latest(some, 10)[0] / 10, bound.latest(some, 50)[0] / 50
    assert bound.latest(some, 25)[0] / 25 == pytest.approx(min(ten, fifty), abs=1 / 25)
    assert bound.latest(some, 100)[0] == 2 * bound.latest(some, 50)[0]
    assert bound.latest(some, 4) == [0]
    assert bound.why_not(some, 4) == "not usable: no run of 4 steps or fewer was profiled"
    assert "such a change of the prompt lost quality when profiled (similarity 0.980)" in bound.why_not(some, 100)


def test_few_steps_from_noise_need_every_measured_bound(table: LearnedTable) -> None:
    bound = LearnedBound(table)
    assert bound.noise(50)
    assert bound.noise(10)
    assert not bound.noise(3)
    levels = table.levels[10]
    assert levels.noise is not None
    pale = levels.noise.copy()
    pale[2] = -0.2  # contrast
    assert not LearnedBound(replace(table, levels={**table.levels, 10: replace(levels, noise=pale)})).noise(10)
    assert bound.noise(10, varied=True)
    for variety in (None, 0.89):
        alike = LearnedBound(replace(table, levels={**table.levels, 10: replace(levels, variety=variety)}))
        assert alike.noise(10)
        assert not alike.noise(10, varied=True)
        assert alike.noise(50, varied=True)  # the reference itself
    assert learned_from_json(learned_to_json(table)).levels[10].variety == levels.variety


def test_candidates_without_a_fitted_bound_take_the_k_tables(table: LearnedTable) -> None:
    picture = Near(IMAGE, 0.6, Relation.EDIT, FOX, FOX, made_by=("small", "w"), run_by="large")
    mixed = [picture, near(1.0, FOX)]
    assert LearnedBound(table).latest(mixed, 50)[0] == 0
    latents_by_table = LearnedBound(None, {("large", ("small", "w")): table}, tables=TableBound({50: FIG_10}))
    ks = latents_by_table.latest(mixed, 50)
    assert ks[0] > 0
    assert ks[1] == 25


async def test_a_bound_counts_for_its_weights_and_encoder_alone(table: LearnedTable, tmp_path: Path) -> None:
    card = find_card("large")
    assert learned_for(shipped_learned(card), card, EncoderId(table.encoder_hash), 0.95) is not None
    assert learned_for([table], card, EncoderId("another"), 0.95) is None
    assert learned_for([replace(table, weights_hash="another")], card, EncoderId(table.encoder_hash), 0.95) is None
    assert learned_for([table], card, EncoderId(table.encoder_hash), 0.99) is None
    assert learned_for([table], card, EncoderId(table.encoder_hash), 0.95, ("small", "w")) is None
    catalog = await open_catalog(f"sqlite+aiosqlite:///{tmp_path}/catalog.sqlite3")
    mine = replace(table, floor=0.7)
    await catalog.profiles.put(KIND, "large", card.weights_hash, learned_to_json(mine))
    found = await load_learned(catalog.profiles, card)
    await catalog.profiles.put(KIND, "large", card.weights_hash, {"measures": []})
    without = await load_learned(catalog.profiles, card)
    await catalog.close()
    assert (found[0].floor, found[0].source) == (0.7, "profile of large")
    assert [one.source for one in without] == ["large/learned_bound.json"]


def test_a_stored_bound_is_read_back_whole(table: LearnedTable) -> None:
    value = json.loads(json.dumps(learned_to_json(table)))
    assert learned_to_json(learned_from_json(value)) == learned_to_json(table)
    with pytest.raises(ValueError, match="finite numbers in the shape"):
        learned_from_json(value | {"bias": [0.0]})
    with pytest.raises(ValueError, match="fit the bound again"):
        learned_from_json(value | {"measures": ["fidelity"]})
    for name, wrong in (("levels", []), ("levels", None), ("floor", None), ("floor", "low")):
        with pytest.raises((ValueError, TypeError)):
            learned_from_json(value | {name: wrong})


def test_the_shipped_file_is_small() -> None:
    assert (BUNDLED / "large" / "learned_bound.json").stat().st_size < 200_000
