"""Which similarity → k table is in force for pictures, by pair of models and encoder."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.embedder.encoder import encoder_id
from shared.models.card_lookup import BUNDLED, bundled_cards, find_card
from shared.models.k_table import CLIP_L14, MODM, EncoderId, KTable, Level, profile_kind, table_to_json
from shared.models.latency import KIND, load_latencies, read_latency
from shared.models.tables_in_force import image_table, load_image_tables

RUN = "afterimage profile --model little --images-from large"
CARD = find_card("noop:?name=small")
TABLE = KTable(
    (Level(10, 0.5),),
    model="small",
    weights_hash=CARD.weights_hash,
    encoder_hash="e1",
    alpha=0.95,
    images_from="large",
    images_weights_hash="w1",
)


class Profiles:
    def __init__(self, **tables: KTable) -> None:
        self._tables = tables

    async def get(self, kind: str, model: str, weights_hash: str) -> dict[str, Any] | None:
        table = self._tables.get(kind.replace(".", "_")) if model == "small from large" else None
        return None if table is None else table_to_json(table)


def test_a_table_counts_for_its_pair_of_weights_and_its_encoder() -> None:
    assert image_table([TABLE], CARD, ("large", "w1"), EncoderId("e1"), RUN).table == TABLE
    for wrong, what in (
        (image_table([TABLE], CARD, ("large", "w1"), EncoderId("e2"), RUN), "another encoder"),
        (image_table([TABLE], CARD, ("large", "w2"), EncoderId("e1"), RUN), "other weights"),
        (
            image_table([replace(TABLE, weights_hash="old")], CARD, ("large", "w1"), EncoderId("e1"), RUN),
            "other weights",
        ),
    ):
        assert (wrong.table, wrong.misfit) == (None, True)
        assert what in wrong.why_not
        assert f"`{RUN}`" in wrong.why_not
    never = image_table([TABLE], CARD, ("other", "w1"), EncoderId("e1"), RUN)
    assert (never.table, never.misfit) == (None, False)
    assert "never measured" in never.why_not


def test_without_a_measurement_the_published_table_for_its_own_encoder_only() -> None:
    clip = EncoderId("e2", CLIP_L14)
    assert image_table([], CARD, ("large", "w1"), clip, RUN).table == MODM
    # vectors of the same length do not make it the same encoder
    assert image_table([], CARD, ("large", "w1"), EncoderId("e1", "0" * 64), RUN).table is None
    assert image_table([], CARD, ("large", "w1"), EncoderId("e1"), RUN).table is None
    assert image_table([TABLE], CARD, ("large", "w1"), clip, RUN).table is None  # measured: thresholds are known


async def test_a_profile_made_here_comes_before_what_ships() -> None:
    kind = profile_kind(0.95, images=True).replace(".", "_")
    found = await load_image_tables(Profiles(**{kind: TABLE}), CARD, ["large", "small"], 0.95)
    assert [(one.images_from, one.levels) for one in found] == [("large", TABLE.levels)]
    assert await load_image_tables(Profiles(), CARD, ["large"], 0.95) == []


async def test_tables_of_further_t_follow_that_of_the_default_t() -> None:
    card = find_card("noop:?name=small&auto_steps=5,50")
    few = replace(TABLE, weights_hash=card.weights_hash, steps=5, levels=(Level(1, 0.5),))
    kinds = [profile_kind(0.95, images=True, steps=steps).replace(".", "_") for steps in (5, 0)]
    tables = dict(zip(kinds, (few, replace(few, steps=50)), strict=True))
    found = await load_image_tables(Profiles(**tables), card, ["large"], 0.95)
    assert [one.steps for one in found] == [50, 5]
    assert image_table(found, card, ("large", "w1"), EncoderId("e1"), RUN).table == found[0]


async def test_the_bundled_pair_ships_its_tables_for_its_own_encoder() -> None:
    cards = bundled_cards()
    large, small, encoder = cards["large"], cards["small"], encoder_id(BUNDLED / "clip")
    for refining, source in ((small, large), (large, small)):
        tables = await load_image_tables(Profiles(), refining, [], 0.95)
        table = image_table(tables, refining, (source.name, source.weights_hash), encoder, RUN).table
        assert table is not None
        assert table.alpha == 0.95
        assert max(level.k for level in table.levels) <= 30
        assert image_table(tables, refining, (source.name, source.weights_hash), EncoderId("other"), RUN).table is None


def test_latencies_of_the_bundled_pair_can_be_compared() -> None:
    cards = bundled_cards()
    large, small = read_latency(cards["large"]), read_latency(cards["small"])
    assert large is not None
    assert small is not None
    assert small.comparable(large)
    assert small.step_s < large.step_s
    waits = read_latency(find_card("noop:?step_ms=20"))
    assert waits is not None
    assert waits.step_s == 0.02
    assert read_latency(find_card("noop:")) is None


class Kept:
    """What a catalog keeps, by kind, model and weights."""

    def __init__(self, profiles: dict[tuple[str, str, str], dict[str, Any]]) -> None:
        self._profiles = profiles

    async def get(self, kind: str, model: str, weights_hash: str) -> dict[str, Any] | None:
        return self._profiles.get((kind, model, weights_hash))


async def test_latencies_of_two_devices_are_not_compared_and_what_is_none_is_ignored(tmp_path: Path) -> None:
    bundled = bundled_cards()["small"]
    folder = shutil.copytree(BUNDLED / "small", tmp_path / "small")
    card, file = replace(bundled, path=str(folder)), folder / "latency.json"
    here = read_latency(bundled)
    measured = json.loads(file.read_text())
    for device, alike in (("cpu", True), ("a GPU", False)):
        file.write_text(json.dumps(measured | {"device": device}))
        there = read_latency(card)
        assert here is not None
        assert there is not None
        assert there.comparable(here) is alike
    stored = Kept({(KIND, "small", card.weights_hash): measured | {"step_s": {"1": 0.5}, "threads": 7}})
    both = await load_latencies(stored, card)
    assert [one.step_s for one in both] == [0.5, measured["step_s"]["1"]]
    assert [one.measured[1] for one in both] == ["7", str(measured["threads"])]
    assert [one.here for one in both] == [True, False]
    assert await load_latencies(Kept({(KIND, "small", card.weights_hash): {"step_s": []}}), card) == both[1:]
    assert await load_latencies(Kept({(KIND, "small", "of other weights"): measured}), card) == both[1:]
    for wrong in ("[]", "{}", "no", json.dumps(measured | {"step_s": 1})):
        file.write_text(wrong)
        assert read_latency(card) is None
