"""Requests that leave T to the plan: T and start are chosen together, and few steps from noise compete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.retriever.bounds import TableBound
from services.retriever.planning import from_noise, from_repeat, options_of, plan_of
from services.retriever.question import Question, Rules, choices_of
from services.retriever.seen import Seen
from services.retriever.selection import allowed_step
from services.retriever.starts import Found, starts_noise
from services.retriever.variety import Variety
from shared.domain.exact_repeats import exact_key
from shared.domain.plan_rules import degrade, smaller_starts
from shared.domain.types import Entry, Hit, ModelPlan, Plan, PlanSource, Request, Scope, Variation
from shared.models.card_lookup import find_card
from shared.models.k_table import FIG_10, Cell, KTable, Level, profile_kind, table_to_json
from shared.runtime.settings import Settings
from tests.unit.cached import near, unit
from tests.unit.cached import request as asked_for
from tests.unit.retriever.conftest import house
from tests.unit.retriever.test_planning import COMPAT, entry, request

CARD = find_card("noop:?auto_steps=5,10,50")
AUTO = request(steps_auto=True)
OF_FIVE = KTable((Level(1, 0.5), Level(2, 0.8), Level(3, 0.9)), steps=5)
OF_TEN = KTable((Level(2, 0.5), Level(8, 0.85)), steps=10)
ALL = (10, 20, 30, 40)


def plan(
    found: Sequence[tuple[float, Entry]],
    tables: Sequence[KTable] = (FIG_10, OF_TEN, OF_FIVE),
    noise: Sequence[int] = (5, 10),
    choices: Sequence[int] = (5, 10, 50),
) -> Plan:
    question = Question(AUTO, "large", COMPAT, encoder_hash="e1", choices=tuple(choices))
    rules = Rules(TableBound({table.steps: table for table in tables}, noise=noise), CARD.step_in)
    hits = [Hit(one.id, similarity) for similarity, one in found]
    return plan_of(options_of(question, rules, Found(hits, entries={one.id: one for _, one in found})))


def test_few_steps_from_noise_are_a_choice_where_they_were_measured() -> None:
    made = plan([])
    assert (made.source, made.may_run, made.run_steps(50)) == (PlanSource.NOISE, (ModelPlan("large", 0, steps=5),), 5)
    assert made.capture_steps == (1, 2)
    assert plan([], noise=(10,)).run_steps(50) == 10
    assert plan([], noise=()).run_steps(50) == 50
    late = plan([(0.96, entry("a"))], tables=[FIG_10])  # 25 steps of 50 against 5
    assert (late.source, late.run_steps(50), late.found) == (PlanSource.NOISE, 5, False)
    assert late.candidates[0].reason == "could start after step 25 of 50; costs 25 steps of large, noise 5"
    assert late.reason == "Generated from noise: no allowed start costs less than 5 steps from noise."
    gone = plan([(0.96, entry("a", ()))], tables=[FIG_10])  # nor would its state, had it one
    assert (gone.reason, gone.found) == (late.reason, False)
    hole = plan([(0.95, entry("a", ()))])
    assert hole.found
    assert "without a usable state" in hole.reason


def test_another_image_of_a_prompt_takes_a_t_that_keeps_variety() -> None:
    """A re-roll, a prompt that another user had, and `variation=new`; but not an edit, nor `variation=same`."""
    seen = Seen()
    seen.note([entry("a", prompt="a red fox", user="ada", seed=1)])

    def steps(
        prompt: str,
        user: str,
        variation: Variation = Variation.AUTO,
        seed: int = 2,
        taken: frozenset[int] = frozenset(),
    ) -> int:
        asked = replace(AUTO, prompt=prompt, user=user, seed=seed, variation=variation)
        question = Question(asked, "large", COMPAT, encoder_hash="e1", choices=(5, 10, 50))
        variety = Variety(asked, seen, 1.0, taken_seeds=taken)
        rules = Rules(TableBound({}, noise=(5, 10), varied=(10,)), CARD.step_in, variety=variety)
        made = from_noise(question, rules, "")
        assert plan_of(options_of(question, rules, Found([]))).may_run == made.may_run
        why = " T = 10, because no smaller T was measured to keep variety among images of one prompt."
        assert made.reason == (why if made.run_steps(50) == 10 else "")
        return made.run_steps(50)

    assert [steps("A red fox.", user) for user in ("ada", "bob", "")] == [10, 10, 10]
    assert [steps("A red fox.", user, seed=1) for user in ("ada", "bob", "")] == [5, 5, 5]  # no other image
    assert steps("a red cat", "ada", taken=frozenset({5})) == 10  # of a request for several images
    seen.note([entry("b", prompt="a secret", user="ada", seed=1, scope=Scope.PRIVATE)])
    assert [steps("a secret", user) for user in ("ada", "bob")] == [10, 5]
    assert [steps("a blue fox", user) for user in ("ada", "bob", "")] == [5, 5, 5]
    assert steps("a red fox", "ada", Variation.SAME) == 5
    assert steps("a blue fox", "ada", Variation.NEW) == 10


def test_few_planned_steps_begin_without_the_prompt_where_the_card_says_so() -> None:
    def began(asked: Request, choices: tuple[int, ...] = (5, 10, 50)) -> list[int]:
        question = Question(asked, "large", COMPAT, choices=choices)
        card = replace(CARD, unprompted=0.1)
        rules = Rules(TableBound({}, noise=(5, 10)), card.step_in, prompted_from=card.prompted_from)
        return [one.prompted_from for one in starts_noise(question, rules)]

    assert began(AUTO) == [1, 1, 0]
    assert began(replace(AUTO, steps_auto=False), ()) == [0]
    assert [replace(CARD, unprompted=share).prompted_from(5) for share in (0.0, 0.2, 0.9)] == [0, 1, 4]


def test_t_and_start_are_chosen_together_from_states_of_any_t() -> None:
    made = plan([(0.85, entry("a", ALL))])  # 3 steps of 5, 8 of 10, 40 of 50
    assert (made.source, made.start_step, made.run_steps(50)) == (PlanSource.LATENT, 2, 5)
    assert (made.state_key, made.may_run, made.miss_steps) == ("states/a/1/20", (ModelPlan("large", 2, steps=5),), 5)
    assert made.capture_steps == ()
    assert (made.candidates[0].allowed_step, made.candidates[0].start_step, made.candidates[0].steps) == (2, 2, 5)
    assert "Starts after 2 of 5 steps" in made.reason
    assert "starts after step 2 of 5" in made.candidates[0].reason
    deep = plan([(0.88, entry("a", ALL))])  # 2 steps of 10 from a state after 40 of 50
    assert (deep.start_step, deep.run_steps(50), deep.state_key) == (8, 10, "states/a/1/40")
    few = entry("b", (1, 2, 3), compat=replace(COMPAT, steps=5))  # its own run had 5 steps
    assert plan([(0.95, few)]).state_key == "states/b/1/3"
    hole = plan([(0.95, entry("a", (5, 25)))])  # neither is a step of 5; 5 steps of 10 from the state after 25
    assert (hole.source, hole.run_steps(50)) == (PlanSource.NOISE, 5)


def test_without_a_measurement_t_is_the_models_default() -> None:
    made = plan([(0.96, entry("a"))], tables=[FIG_10], noise=())
    assert (made.source, made.start_step, made.run_steps(50)) == (PlanSource.LATENT, 25, 50)
    assert made.may_run == (ModelPlan("large", 25, steps=50),)
    named = plan([(0.96, entry("a"))], choices=())
    assert (named.start_step, named.may_run) == (25, (ModelPlan("large", 25),))


@given(
    found=st.lists(
        st.tuples(
            st.floats(-1, 1), st.lists(st.integers(1, 49), max_size=5, unique=True), st.sampled_from([50, 10, 5])
        ),
        max_size=6,
    ),
    noise=st.sets(st.sampled_from([5, 10])),
)
def test_no_start_costs_more_than_noise_or_goes_beyond_its_bound(
    found: list[tuple[float, list[int], int]], noise: set[int]
) -> None:
    made = [
        (similarity, entry(f"e{n}", [k for k in ks if k < T], compat=replace(COMPAT, steps=T)))
        for n, (similarity, ks, T) in enumerate(found)
    ]
    result = plan(made, noise=sorted(noise))
    steps = result.run_steps(50)
    if result.source is PlanSource.NOISE:
        assert steps == min({50} | noise)
        return
    assert steps - result.start_step < min({50} | noise)
    similarity, chosen = next(pair for pair in made if pair[1].id == result.entry_id)
    table = {5: OF_FIVE, 10: OF_TEN, 50: FIG_10}[steps]
    assert 0 < result.start_step <= allowed_step(table, similarity, steps)
    state = next(state for state in chosen.states if state.key == result.state_key)
    assert state.step * steps == result.start_step * chosen.compat.steps  # exactly the same noise
    assert all(0 < step < steps for step in result.capture_steps)


def test_a_lost_start_becomes_the_shortest_run_from_noise() -> None:
    ten = replace(plan([(0.88, entry("a", ALL))]), capture_steps=(2, 4, 9))
    lost = degrade(ten, "blobs: gone")
    assert (lost.source, lost.run_steps(50), lost.capture_steps) == (PlanSource.NOISE, 5, (1, 2, 4))
    assert (lost.prompted_from, degrade(replace(ten, miss_prompted_from=1), "gone").prompted_from) == (0, 1)
    whole = entry("a", ALL, compat=replace(COMPAT, weights_hash=CARD.weights_hash))
    keys = CARD.compat_for(AUTO)
    smaller = list(smaller_starts(ten, replace(whole, compat=keys), CARD, AUTO, "gone"))
    assert [(one.start_step, one.state_key) for one in smaller] == [
        (6, "states/a/1/30"),
        (4, "states/a/1/20"),
        (2, "states/a/1/10"),
    ]


def test_an_exact_repeat_names_the_t_of_the_stored_image() -> None:
    question = Question(AUTO, "large", COMPAT, choices=(5, 50))
    made = from_repeat(question, entry("a", compat=replace(COMPAT, steps=5)))
    assert (made.start_step, made.run_steps(50)) == (5, 5)
    assert exact_key(AUTO, COMPAT) != exact_key(request(), COMPAT)


@pytest.mark.parametrize(("most", "expected"), [(None, (5, 10, 50)), (20, (5, 10))])
def test_the_services_limit_of_steps_bounds_the_choices(most: int | None, expected: tuple[int, ...]) -> None:
    assert choices_of(CARD, AUTO, most) == expected
    assert choices_of(CARD, request(), most) == ()
    assert choices_of(find_card("noop:"), AUTO, most) == ()


async def test_tables_at_every_listed_t_count(noop: Settings) -> None:
    settings = noop.model_copy(update={"large": "noop:?name=noop&auto_steps=5,10,50", "reuse_rules": "paper"})
    card = find_card(settings.large)
    safe = Cell(0, -1.0, 1.0, 400, 1.0, 0.99, safe=True)
    async with house(settings) as home:
        for table in (replace(OF_TEN, noise=safe), OF_FIVE):
            table = replace(table, model="noop", weights_hash=card.weights_hash, encoder_hash="e1")
            kind = profile_kind(settings.k_table_alpha, steps=table.steps)
            await home.backends.catalog.profiles.put(kind, "noop", card.weights_hash, table_to_json(table))
    async with house(settings) as home:
        asked = asked_for("a fox", seed=8, steps_auto=True)
        noise = await home.plan(asked, unit(1))
        assert (noise.source, noise.run_steps(50)) == (PlanSource.NOISE, 10)  # 5 steps from noise were not measured
        await home.cache(asked_for("a wolf"), unit(1), steps=(10, 20, 30), model="noop:?name=noop&auto_steps=5,10,50")
        hit = await home.plan(asked, near(unit(1), 0.85))
        assert (hit.source, hit.start_step, hit.run_steps(50), hit.miss_steps) == (PlanSource.LATENT, 2, 5, 10)
        named = await home.plan(asked_for("a fox", seed=8), near(unit(1), 0.85))
        assert (named.start_step, named.run_steps(50)) == (10, 50)
        assert (await home.plan(asked, None)).run_steps(50) == 10


def test_the_plan_for_an_unreadable_cache_states_t() -> None:
    question = Question(AUTO, "large", COMPAT, choices=(5, 10, 50))
    rules = Rules(TableBound({}, noise=(10,)), CARD.step_in)
    assert from_noise(question, rules, "").may_run == (ModelPlan("large", 0, steps=10),)
