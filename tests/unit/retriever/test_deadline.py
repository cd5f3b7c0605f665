"""A plan that is predicted late becomes the preferred one that is in time, and no cheaper one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.embedder.encoder import encoder_hash
from services.retriever.bounds import ImageTables, TableBound
from services.retriever.cost import Pace
from services.retriever.deadline import Deadline, meet
from services.retriever.planning import Options, options_of, plan_of
from services.retriever.question import Refiner, Rules
from services.retriever.sooner import Run, runs_in_order
from services.retriever.starts import Found
from shared.domain.forecasts import Forecast
from shared.domain.types import Entry, Hit, Plan, PlanSource
from shared.models.card_lookup import BUNDLED
from shared.models.k_table import FIG_10, KTable, Level
from shared.models.tables_in_force import ImageTable
from shared.runtime.settings import Settings
from tests.unit.cached import request as asked_for
from tests.unit.cached import unit
from tests.unit.retriever.conftest import house
from tests.unit.retriever.test_pictures import with_picture
from tests.unit.retriever.test_planning import CARD, entry, question

IMAGES = ImageTables(lambda *_: ImageTable(KTable((Level(20, 0.2),), source="measured")))
SMALL = Refiner(
    "small", "w2", pace=Pace(0.5, 1.0, known=True), small=True, noise=lambda varied: () if varied else (50,)
)
SERVED = ("large", "small")
LANES = ("generate.large", "large"), ("generate.small", "small"), ("generate.refine", "small")


def forecast(wait_s: float = 0.0, step_s: float = 1.0, of: tuple[str, str] = LANES[0]) -> Forecast:
    return Forecast(*of, wait_s, step_s)


def options(found: Sequence[tuple[float, Entry]], savings: float = 0.5, **more: Any) -> Options:
    """All starts from latents by NIRVANA's table, and from images of similarity .5 by the small model."""
    asked, images = question(savings=savings, deadline_s=1.0), more.pop("images", ())
    bound = TableBound({50: FIG_10}, {"small": IMAGES}, savings=savings)
    entries = {one.id: one for one in (*(one for _, one in found), *images)}
    hits = Found([Hit(one.id, s) for s, one in found], [Hit(one.id, 0.5) for one in images], entries)
    return options_of(asked, Rules(bound, CARD.step_in, **more), hits)


def planned(
    own: Options, limit_s: float, forecasts: Sequence[Forecast], wide: Options | None = None
) -> tuple[Plan, Plan, list[Run], Deadline]:
    """The plan, the ordinary one, the runs and the deadline."""
    deadline = Deadline(replace(own.question.request, deadline_s=limit_s), SERVED, forecasts)
    ordinary, runs = plan_of(own), runs_in_order(own, wide)
    return meet(deadline, ordinary, runs), ordinary, runs, deadline


def test_a_plan_in_time_and_one_of_unknown_step_times_stay() -> None:
    own = options([(0.92, entry("a"))])
    made, ordinary, *_ = planned(own, 30.0, [forecast()])
    assert made is ordinary
    assert ordinary.start_step == 20
    made, ordinary, *_ = planned(own, 29.0, [])
    assert made is ordinary


def test_more_savings_than_the_request_named_are_taken_as_far_as_needed() -> None:
    near = [(0.96, entry("a"))]
    own, wide = options(near, savings=0.0), options(near, savings=0.5, every_start=True)
    assert plan_of(own).start_step == 20
    made, *_ = planned(own, 25.0, [forecast()], wide)
    assert (made.start_step, made.for_deadline, made.state_key) == (25, "start", "states/a/1/25")
    assert "large after step 25 of 50 is predicted to take 25 s, large after step 20 of 50 30 s" in made.reason
    assert [one.chosen for one in made.candidates] == [True]
    far = options([(0.86, entry("b"))], savings=0.0), options([(0.86, entry("b"))], savings=0.5, every_start=True)
    assert plan_of(far[0]).start_step == 5
    assert planned(far[0], 40.0, [forecast()], far[1])[0].start_step == 10  # 15 would be allowed
    late, ordinary, *_ = planned(far[0], 30.0, [forecast()], far[1])
    assert (late.start_step, late.for_deadline) == (ordinary.start_step, "")
    assert late.soonest is not None
    assert (late.soonest.run, late.soonest.finish_s, late.soonest.alone_s) == ("large after step 15 of 50", 35.0, 35.0)


def test_a_late_plan_names_the_soonest_run_and_the_seconds_of_the_quickest() -> None:
    waits = [forecast(1000.0), forecast(2000.0, 0.5, LANES[1])]
    late, *_ = planned(options([], refiners=(SMALL,)), 900.0, waits)
    assert late.soonest is not None
    assert (late.soonest.run, late.soonest.finish_s, late.soonest.alone_s) == ("large after step 0 of 50", 1050.0, 25.0)
    assert "the deadline of 900 s: the soonest is predicted to take 1050 s" in late.reason


def test_the_small_model_runs_where_its_lane_is_shorter() -> None:
    own = options([(0.96, entry("a"))], images=[with_picture("i")], refiners=(SMALL,))
    waits = [forecast(100.0), forecast(0.0, 0.5, LANES[2])]
    assert plan_of(own).model == "small"  # 30 steps of half the cost
    dear = options([(0.96, entry("a"))], images=[with_picture("i")], refiners=(replace(SMALL, pace=Pace()),))
    assert plan_of(dear).model == "large"
    made, *_ = planned(dear, 20.0, waits)
    assert (made.source, made.model, made.start_step, made.for_deadline) == (PlanSource.IMAGE, "small", 20, "model")
    assert [one.model for one in made.may_run] == ["small"]
    noise = options([], refiners=(SMALL,))
    made, *_ = planned(noise, 30.0, [forecast(), forecast(0.0, 0.5, LANES[1])])
    assert (made.source, made.model, made.weights_hash, made.for_deadline) == (PlanSource.NOISE, "small", "w2", "model")
    assert planned(replace(noise, varied=True), 30.0, [forecast(), forecast(0.0, 0.5, LANES[1])])[0].model == "large"


def test_another_model_never_takes_a_request_that_names_one_nor_fewer_steps() -> None:
    forecasts = [forecast(), forecast(0.0, 0.1, LANES[1])]
    few = replace(SMALL, steps=(10,), noise=lambda _: (10,))
    assert planned(options([], refiners=(few,)), 30.0, forecasts)[0].model == "large"
    base = options([], refiners=(SMALL,))
    named = replace(base, question=replace(base.question, request=replace(base.question.request, quality="large")))
    assert planned(named, 30.0, forecasts)[0].model == "large"


def test_less_savings_keep_the_large_model_where_a_later_start_is_in_time() -> None:
    """The small model's runs from noise keep the whole loss of the measured bound, not that of smaller `savings`."""
    near, quick = [(0.96, entry("a"))], [forecast(), forecast(0.0, 0.1, LANES[1])]
    own = options(near, savings=0.0, refiners=(SMALL,))
    wide = options(near, savings=0.5, refiners=(SMALL,), every_start=True)
    assert planned(own, 25.0, quick, wide)[0].start_step == 25
    assert planned(own, 20.0, quick, wide)[0].model == "small"
    assert planned(own, 20.0, quick)[0].model == "large"  # deadline_savings=0: nothing is given up


@pytest.mark.parametrize(("guidance", "model"), [(1.0, "large"), (2.5, "small")])
def test_a_model_without_an_unconditional_pass_takes_no_negative_prompt(guidance: float, model: str) -> None:
    base = options([], refiners=(replace(SMALL, guidance=guidance),))
    asked = replace(base.question.request, negative_prompt="blurry", guidance=2.5)
    refused = replace(base, question=replace(base.question, request=asked))
    assert planned(refused, 30.0, [forecast(), forecast(0.0, 0.1, LANES[1])])[0].model == model


@given(st.floats(1.0, 60.0))
def test_fewer_steps_only_where_the_request_left_them_to_the_plan(limit_s: float) -> None:
    """At savings 0 no T but 50 keeps the bound here; at .5, 10 and 5 do."""

    def all_of(noise: Sequence[int], choices: tuple[int, ...]) -> Options:
        asked = replace(question(deadline_s=1.0, steps_auto=bool(choices)), choices=choices)
        return options_of(asked, Rules(TableBound({50: FIG_10}, noise=noise), CARD.step_in), Found([]))

    own, wide = all_of((), (5, 10, 50)), all_of((5, 10), (5, 10, 50))
    made, *_ = planned(own, limit_s, [forecast()], wide)
    steps = made.run_steps(50)
    assert steps == (50 if limit_s >= 50 or limit_s < 5 else 10 if limit_s >= 10 else 5)
    assert made.for_deadline == ("" if steps == 50 else "steps")
    assert "variety" not in made.reason
    named, *_ = planned(all_of((), ()), limit_s, [forecast()], all_of((5, 10), ()))
    assert named.run_steps(50) == 50


@given(
    st.lists(st.floats(0.6, 0.999), max_size=4),
    st.floats(1.0, 60.0),
    st.floats(0.0, 0.4),
    st.lists(st.tuples(st.floats(0.0, 50.0), st.floats(0.1, 1.5)), min_size=3, max_size=3),
)
def test_the_plan_is_never_cheaper_than_the_deadline_needs(
    similarities: list[float], limit_s: float, savings: float, lanes: list[tuple[float, float]]
) -> None:
    near = [(one, entry(f"e{n}")) for n, one in enumerate(similarities)]
    images = [with_picture("i")]
    own = options(near, savings, images=images, refiners=(SMALL,))
    wide = options(near, 0.5, images=images, refiners=(SMALL,), every_start=True)
    forecasts = [forecast(*times, of=of) for of, times in zip(LANES, lanes, strict=True)]
    made, ordinary, runs, deadline = planned(own, limit_s, forecasts, wide)
    if not deadline.late(ordinary):
        assert made is ordinary
        return
    finishes = [(run, found[1]) for run in runs if (found := deadline.of(run)) is not None]
    in_time = [run for run, finish_s in finishes if finish_s <= limit_s]
    if not in_time:
        assert made.soonest is not None
        assert made.soonest.finish_s == min(finish_s for _, finish_s in finishes)
        assert replace(made, soonest=None, reason="") == replace(ordinary, reason="")
        return
    assert not deadline.late(made)
    assert made.for_deadline
    own_keys = {run.key for run in runs_in_order(own)}
    within = [run for run in in_time if run.key in own_keys]
    best = min(within, key=lambda run: run.start.cost) if within else max(in_time, key=lambda run: run.start.cost)
    assert (made.model, made.start_step) == (best.start.model, best.start.step)


@pytest.mark.parametrize("deadline_savings", [0.0, 0.5])
async def test_the_retriever_plans_for_a_deadline_and_searches_despite_a_predicted_miss(
    noop: Settings, deadline_savings: float
) -> None:
    settings = noop.model_copy(update={"deadline_savings": deadline_savings})
    async with house(settings) as it:
        vector = unit(1)
        await it.cache(asked_for(user="ada"), vector)
        asked = asked_for("a red cube on a table", savings=0.0, deadline_s=30.0)
        times = [{"lane": "generate.noop", "model": "noop", "step_s": 1.0, "slowdown": 1.0}]
        usual = await it.plan(asked, vector, predicted_hit=False)
        assert usual.source is PlanSource.NOISE
        made = await it.plan(asked, vector, predicted_hit=False, forecasts=times)
        assert (made.source, made.start_step, made.for_deadline) == (PlanSource.LATENT, 25, "start")
        assert (made.predicted_hit, made.looked_up) == (False, False)
        loose = await it.plan(replace(asked, deadline_s=60.0), vector, predicted_hit=False, forecasts=times)
        assert (loose.source, loose.for_deadline) == (PlanSource.NOISE, "")
        tight = await it.plan(replace(asked, deadline_s=3.0), vector, predicted_hit=False, forecasts=times)
        assert tight.soonest is not None
        assert tight.soonest.finish_s == 25.0
        off = await it.plan(replace(asked, deadline_s=None), vector, predicted_hit=False, forecasts=times)
        assert off == replace(usual, candidates=off.candidates)


async def test_the_bundled_small_model_takes_five_steps_for_a_late_request_but_no_re_roll(noop: Settings) -> None:
    settings = noop.model_copy(update={"large": "bundled:large", "small": "bundled:small"})
    times = [
        {"lane": "generate.large", "model": "large", "wait_s": 3.0, "step_s": 0.1, "slowdown": 1.0},
        {"lane": "generate.small", "model": "small", "step_s": 0.1, "slowdown": 1.0},
    ]
    given: dict[str, Any] = {"encoder": encoder_hash(BUNDLED / "clip"), "model": "large", "forecasts": times}
    asked = replace(asked_for("a red fox in the snow"), guidance=2.5, steps_auto=True, deadline_s=1.0)
    async with house(settings) as it:
        made = await it.plan(asked, unit(1), **given)
        assert (made.model, made.source, made.run_steps(50)) == ("small", PlanSource.NOISE, 5)
        assert (made.for_deadline, made.run_guidance(2.5)) == ("model", 1.0)
        again = await it.plan(replace(asked, seed=8), unit(1), **given)
        assert (again.model, again.for_deadline) == ("large", "")
        assert again.soonest is not None
        named = await it.plan(replace(asked, prompt="two boats", steps_auto=False), unit(2), **given)
        assert (named.model, named.run_steps(50)) == ("large", 50)
