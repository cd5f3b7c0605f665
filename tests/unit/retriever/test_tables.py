"""Which k-table a plan takes for its model and encoder."""

import asyncio
import shutil
from dataclasses import replace
from typing import Any

import pytest

from services.embedder.encoder import encoder_hash
from services.embedder.service import EmbedderService
from services.retriever.selection import Ladder
from services.retriever.service import RetrieverService
from services.retriever.tables import floored
from shared.domain.types import PlanSource
from shared.models.card_lookup import BUNDLED, find_card
from shared.models.k_table import PROFILED, EncoderId, KTable, Level, profile_kind, table_to_json
from shared.models.tables_in_force import shipped_table
from shared.runtime.settings import Settings
from shared.service import running
from tests.unit.cached import MODEL, near, request, unit
from tests.unit.retriever.conftest import house


async def test_a_no_op_model_takes_any_table_and_the_plan_says_so(noop: Settings) -> None:
    card = find_card(MODEL)
    table = KTable((Level(10, 0.5),), model="noop", weights_hash=card.weights_hash, encoder_hash="other")
    async with house(noop) as home:
        await home.cache(request(), unit(1))
        plan = await home.plan(request("x"), near(unit(1), 0.8))
        assert (plan.start_step, plan.degraded) == (10, ())
        assert plan.reason.endswith(
            "K table: NIRVANA Fig. 10, taken for a no-op model although it was measured with CLIP ViT-L/14."
        )
        await home.backends.catalog.profiles.put(
            profile_kind(noop.k_table_alpha), "noop", card.weights_hash, table_to_json(table)
        )
    async with house(noop) as home:
        plan = await home.plan(request("x"), near(unit(1), 0.6))
        assert (plan.start_step, plan.degraded) == (10, ())
        assert "taken for a no-op model although it was measured with another encoder" in plan.reason


@pytest.mark.parametrize(
    ("stated", "changes", "expected"),
    [
        (0.477, {}, 0.477),
        (None, {}, 0.3),
        (None, {"similarity_floor": -1.0}, -1.0),
        (0.477, {"reuse_rules": "paper"}, None),
        (None, {"reuse_rules": "paper"}, None),
    ],
)
def test_the_floor_is_the_tables_own_else_the_settings_and_the_papers_have_none(
    noop: Settings, stated: float | None, changes: dict[str, Any], expected: float | None
) -> None:
    table = KTable((Level(5, -0.4),), floor=stated)
    settings = noop.model_copy(update=changes)
    found = floored(table, settings, settings.similarity_floor)
    assert found is not None
    assert found.floor == expected
    assert floored(None, settings, 0.3) is None


@pytest.mark.parametrize("model", ["large", "small"])
def test_the_shipped_tables_let_no_unrelated_prompt_start_an_image(model: str) -> None:
    card = find_card(f"bundled:{model}")
    for alpha in PROFILED:
        table = shipped_table(card, alpha)
        assert table is not None
        assert table.floor is not None
        assert 0.17 < table.floor < 0.48  # unrelated pairs, changed objects (bench/k_quality.md)
        assert not Ladder(table, 50, floor=table.floor).wished(0.107)


async def test_without_a_table_for_the_encoder_only_exact_repeats_are_reused(
    settings: Settings, logs: list[dict[str, Any]]
) -> None:
    """The tables that ship with `large` count for the encoder that ships, and Fig. 10 for CLIP ViT-L/14: here runs
    neither."""
    settings = settings.model_copy(update={"large": "bundled:large", "image_tier": "off"})
    run = "afterimage profile --model bundled:large --encoder bundled:clip"
    async with house(settings) as home:
        await home.cache(request(), unit(1), model="bundled:large")
        for predicted in (True, False):  # a predicted miss hides the reason no more than a predicted hit
            plan = await home.plan(request("x"), unit(1), model="large", predicted_hit=predicted)
            assert (plan.source, plan.looked_up, plan.candidates) == (PlanSource.NOISE, False, ())
            assert "none counts for large with this encoder" in plan.reason
            assert plan.reason.endswith(f"only exact repeats are reused; run `{run}`.")
            assert [note.rpartition("; ")[2] for note in plan.degraded] == [f"run `{run}`"]
        repeat = await home.plan(request(), unit(1), model="large", seed_given=True)
        assert repeat.source is PlanSource.EXACT
        ours = await home.plan(request("x"), unit(1), model="large", encoder=encoder_hash(BUNDLED / "clip"))
        assert (ours.looked_up, ours.degraded) == (True, ())
    (said,) = [one for one in logs if one["event"] == "no K table: only exact repeats are reused"]
    assert (said["model"], run in said["why"]) == ("large", True)


async def test_the_start_names_the_models_without_a_table_for_its_encoder(
    settings: Settings, logs: list[dict[str, Any]]
) -> None:
    """`small` ships tables; the copy of its weights under another name has other weights by its configuration."""
    folder = shutil.copytree(BUNDLED / "small", settings.data_dir / "mine")
    (folder / "card.json").unlink()
    config = folder / "scheduler" / "scheduler_config.json"
    config.write_text(config.read_text() + "\n")
    settings = settings.model_copy(update={"large": str(folder), "small": "bundled:small"})
    async with running([RetrieverService(), EmbedderService()], settings):
        async with asyncio.timeout(60):
            while not (said := [one for one in logs if one["event"] == "no K table: only exact repeats are reused"]):
                await asyncio.sleep(0.01)
    assert [one["model"] for one in said] == ["mine"]
    assert f"run `afterimage profile --model {folder} --encoder bundled:clip`" in said[0]["why"]
    assert "k_table_0.95.json: it was measured with other weights" in said[0]["why"]


async def test_tables_that_cannot_be_read_are_read_again_later(noop: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = 0

    async def broken(*_: object) -> None:
        nonlocal readings
        readings += 1
        raise KeyError("a row of another version")

    monkeypatch.setattr("services.retriever.tables.REREAD_S", 0.01)
    async with house(noop), asyncio.timeout(30):
        monkeypatch.setattr("services.retriever.tables.load_latencies", broken)
        while readings < 2:
            await asyncio.sleep(0.01)


async def test_a_changed_weights_hash_is_a_miss(noop: Settings) -> None:
    async with house(noop) as home:
        await home.cache(request(), unit(1))
    other = noop.model_copy(update={"large": "noop:?name=noop&weights=2"})
    async with house(other) as home:
        plan = await home.plan(request("x"), unit(1))
        assert (plan.source, plan.candidates) == (PlanSource.NOISE, ())


async def test_a_table_of_pairs_counts_for_its_weights_and_encoder(noop: Settings) -> None:
    card, encoder = find_card(MODEL), EncoderId("e1", "")
    table = KTable((Level(5, 0.6),), model="noop", weights_hash=card.weights_hash, encoder_hash="e1", alpha=0.95)
    async with house(noop) as home:
        catalog = home.backends.catalog
        for stored, expected in (
            (replace(table, weights_hash="another"), None),
            (replace(table, encoder_hash="e2"), None),
            (table, 5),
        ):
            kind = profile_kind(noop.k_table_alpha, pairs=True)
            await catalog.profiles.put(kind, "noop", card.weights_hash, table_to_json(stored))
            await home.service._tables._reread([known := await home.service._tables.of(MODEL)])
            known = await home.service._tables.of("noop")
            found = known.pair_table(encoder, noop)
            assert (found and found.levels[0].k) == expected
            assert known.pair_table(encoder, noop.model_copy(update={"reuse_bound": "nirvana"})) is None
            paper = known.pair_table(encoder, noop.model_copy(update={"reuse_bound": "flexcache"}))
            assert paper is not None
            assert paper.assumed
