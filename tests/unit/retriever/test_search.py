"""How far the retriever looks when the nearest entries have no usable state."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from shared.domain.errors import UnavailableError
from shared.domain.types import IndexItem, Scope, Vector, owner_key
from shared.models.card_lookup import find_card
from shared.runtime.clock import ManualClock
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS
from tests.unit.cached import ENCODER, MODEL, near, request, unit
from tests.unit.retriever.conftest import House, house


@pytest.mark.parametrize(("further", "start"), [(64, 15), (1, 0)])
async def test_holes_in_all_of_the_nearest_are_looked_past(noop: Settings, further: int, start: int) -> None:
    settings = noop.model_copy(update={"candidates": 3, "further_candidates": further})
    async with house(settings) as home:
        for place in range(5):  # what hits leave: states later than any similarity here allows
            await home.cache(request(f"late {place}"), near(unit(1), 0.94 - place / 1000), steps=(25,))
        entry = await home.cache(request("from noise"), near(unit(1), 0.88))
        plan = await home.plan(request("new"), unit(1))
        assert (plan.start_step, plan.entry_id) == (start, entry if start else "")
        prompts = [one.prompt for one in plan.candidates]
        assert prompts == ["late 0", "late 1", "late 2", *(["from noise"] if start else [])]


@pytest.mark.parametrize("gone_at", [0.93, 0.90])
async def test_an_index_hit_whose_entry_is_gone_does_not_end_the_search(noop: Settings, gone_at: float) -> None:
    """Whether it is among the nearest or the last of them, which decides whether less similar ones may do better."""
    settings = noop.model_copy(update={"candidates": 3})
    async with house(settings) as home:
        for place in range(2):
            await home.cache(request(f"late {place}"), near(unit(1), 0.94 - place / 50), steps=(25,))
        compat = str(find_card(MODEL).compat(request().size, 50))
        gone = IndexItem(
            "gone", {"whole": near(unit(1), gone_at)}, compat, owner_key(Scope.TENANT, "default", ""), ENCODER
        )
        await home.backends.index.add([gone])
        entry = await home.cache(request("from noise"), near(unit(1), 0.88))
        plan = await home.plan(request("new"), unit(1))
        assert (plan.start_step, plan.entry_id) == (15, entry)
        assert "no longer in the cache" in {one.reason for one in plan.candidates}


async def test_wider_searches_are_counted_by_their_outcome(noop: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def counted() -> dict[str, float]:
        outcomes = ("later_start", "nothing_better", "failed")
        return {one: METRICS.wider_searches.labels(one)._value.get() for one in outcomes}

    async def plans(home: House, vector: Vector, *, dry_run: bool = False) -> dict[str, float]:
        before = counted()
        await home.plan(request("new"), vector, dry_run=dry_run)
        return {one: count - before[one] for one, count in counted().items() if count > before[one]}

    async with house(noop.model_copy(update={"candidates": 1})) as home:
        await home.cache(request("near"), near(unit(1), 0.94), steps=(20,))
        assert await plans(home, unit(1)) == {}  # it holds what its similarity allows
        await home.cache(request("late"), near(unit(2), 0.94), steps=(25,))
        await home.cache(request("later"), near(unit(2), 0.93), steps=(25,))
        assert await plans(home, unit(2)) == {"nothing_better": 1}
        await home.cache(request("from noise"), near(unit(2), 0.88))
        assert await plans(home, unit(2)) == {"later_start": 1}
        assert await plans(home, unit(2), dry_run=True) == {}
        search = home.backends.index.search

        async def once(name: str, vector: Vector, where: Any, limit: int) -> Any:
            if limit > 1:
                raise UnavailableError("the index is away")
            return await search(name, vector, where, limit)

        monkeypatch.setattr(home.backends.index, "search", once)
        assert await plans(home, unit(2)) == {"failed": 1}
        away = METRICS.degraded.labels("index")._value
        before = away.get()
        assert await plans(home, unit(2), dry_run=True) == {}
        assert away.get() == before


async def test_a_further_look_that_fails_leaves_the_nearest(noop: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = noop.model_copy(update={"candidates": 1})
    async with house(settings) as home:
        await home.cache(request("early"), near(unit(1), 0.94), steps=(5, 25))
        await home.cache(request("from noise"), near(unit(1), 0.92))
        search = home.backends.index.search

        async def once(name: str, vector: Vector, where: Any, limit: int) -> Any:
            if limit > 1:
                raise UnavailableError("the index is away")
            return await search(name, vector, where, limit)

        monkeypatch.setattr(home.backends.index, "search", once)
        plan = await home.plan(request("new"), unit(1))
        assert (plan.start_step, plan.candidates[0].prompt) == (5, "early")
        assert len(plan.candidates) == 1
        assert plan.degraded == ("index: UnavailableError: the index is away",)


async def test_two_looks_have_the_time_of_one(noop: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, settings = ManualClock(), noop.model_copy(update={"candidates": 1, "lookup_timeout_s": 5.0})
    async with house(settings, clock) as home:
        await home.cache(request("early"), near(unit(1), 0.94), steps=(5, 25))
        await home.cache(request("from noise"), near(unit(1), 0.92))
        search = home.backends.index.search

        async def slow(name: str, vector: Vector, where: Any, limit: int) -> Any:
            if limit > 1:
                await asyncio.sleep(0.01)
            else:
                clock.advance(10)  # as long as a search and a read may take
            return await search(name, vector, where, limit)

        monkeypatch.setattr(home.backends.index, "search", slow)
        home.service._entries.remembered.put((await home.backends.catalog.entries.page(9, ""))[0], 0)
        plan = await home.plan(request("new"), unit(1))
        assert (plan.start_step, plan.candidates[0].prompt) == (5, "early")
        assert plan.degraded == ("index: no answer within 0 s",)


async def test_a_late_plan_is_looked_for_in_the_time_of_the_ordinary_one(
    noop: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    asked = replace(request("new"), savings=0.0, deadline_s=25.0)
    times = [{"lane": "generate.noop", "model": "noop", "step_s": 1.0, "slowdown": 1.0}]
    async with house(noop.model_copy(update={"lookup_timeout_s": 5.0, "reuse_rules": "paper"}), clock) as home:
        await home.cache(request("old"), near(unit(1), 0.96), steps=(5, 10, 15, 20, 25))
        assert (await home.plan(asked, unit(1), forecasts=times)).for_deadline == "start"
        search, searches = home.backends.index.search, 0

        async def slow(name: str, vector: Vector, where: Any, limit: int) -> Any:
            nonlocal searches
            searches += 1
            if searches > 1:
                await asyncio.sleep(0.01)
            found = await search(name, vector, where, limit)
            clock.advance(10)  # as long as all searches of a plan may take
            return found

        monkeypatch.setattr(home.backends.index, "search", slow)
        home.service._entries.remembered.put((await home.backends.catalog.entries.page(9, ""))[0], 0)
        plan = await home.plan(replace(asked, prompt="newer"), unit(1), forecasts=times)
        assert searches == 2
        assert (plan.for_deadline, plan.degraded) == ("", ())
