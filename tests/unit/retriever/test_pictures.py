"""Image hits: whose picture may start whom, at which k, and when that beats a latent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from services.retriever.bounds import ImageTables, TableBound, TableOf
from services.retriever.choice import choose
from services.retriever.cost import Pace, cost_of, pace_of
from services.retriever.planning import options_of, plan_of
from services.retriever.question import Question, Refiner, Rules
from services.retriever.starts import Found, Option, Start
from shared.domain.types import Candidate, Entry, Hit, ModelPlan, Plan, PlanSource, Scope, Size, State
from shared.models.card_lookup import find_card
from shared.models.k_table import FIG_10, MODM, KTable, Level
from shared.models.latency import Latency
from shared.models.tables_in_force import ImageTable
from tests.unit.retriever.test_planning import entry, request

LOW = KTable((Level(5, 0.1), Level(10, 0.3), Level(20, 0.6)), source="measured")
CARD = find_card("noop:")


@dataclass(frozen=True)
class Runner:
    """A model that continues from images, and its tables."""

    model: str
    weights_hash: str
    table_of: TableOf
    pace: Pace = field(default_factory=Pace)
    guidance: float | None = None
    small: bool = False
    own_steps: int | None = None
    """None: as many steps as the request's."""


SMALL = Runner("small", "w2", lambda model, weights: ImageTable(LOW), Pace(0.3, 0.3, known=True), 1.0, small=True)
LARGE = Runner("large", "w1", lambda model, weights: ImageTable(MODM), Pace(1.0, 0.3, known=True))


def with_picture(name: str, **changes: object) -> Entry:
    one = entry(name, **changes)  # type: ignore[arg-type]
    return replace(one, states=(State(name, 0, one.picture_key, 300, "png", one.picture_sha256), *one.states))


def plan(
    runners: Sequence[Runner] = (SMALL, LARGE),
    *,
    latents: Sequence[tuple[float, Entry]] = (),
    pictures: Sequence[tuple[float, Entry]] = (),
    **changes: object,
) -> Plan:
    asked = request(**changes)
    question = Question(asked, "large", replace(entry("any").compat, steps=asked.steps), encoder_hash="e1")
    found = Found(
        [Hit(one.id, similarity) for similarity, one in latents],
        [Hit(one.id, similarity) for similarity, one in pictures],
        {one.id: one for _, one in (*latents, *pictures)},
    )
    steps = {one.model: one.own_steps or asked.steps for one in runners}
    tables = {
        one.model: ImageTables(one.table_of, steps[one.model], CARD.step_near if one.own_steps else None)
        for one in runners
    }
    refiners = tuple(
        Refiner(one.model, one.weights_hash, (steps[one.model],), one.pace, one.guidance, one.small) for one in runners
    )
    bound = TableBound({50: FIG_10}, tables, steps=asked.steps, savings=asked.savings)
    return plan_of(options_of(question, Rules(bound, CARD.step_in, refiners=refiners), found))


def test_each_model_has_its_own_k_and_the_cheapest_is_named_first() -> None:
    made = plan(pictures=[(0.7, with_picture("a"))])
    assert made.source is PlanSource.IMAGE
    assert made.may_run == (ModelPlan("small", 20, 1.0), ModelPlan("large", 30))
    assert (made.model, made.start_step, made.weights_hash, made.miss_model) == ("small", 20, "w2", "large")
    assert (made.entry_id, made.state_key, made.state_sha256) == ("a", "pictures/a/1.png", "pa")
    assert made.capture_steps == ()
    assert "by large" in made.reason
    assert "large after 30" in made.reason
    assert made.candidates[0].reason == "small starts after step 20, large after step 30"
    assert (made.candidates[0].kind, made.candidates[0].model, made.candidates[0].chosen) == ("image", "large", True)


def test_k_is_scaled_to_the_run_and_rounds_down() -> None:
    made = plan(pictures=[(0.7, with_picture("a"))], steps=12)
    assert [one.start_step for one in made.may_run] == [4, 7]  # 20 and 30 of 50
    few = plan([SMALL], pictures=[(0.2, with_picture("a"))], steps=9)
    assert few.source is PlanSource.NOISE
    assert "too few to skip any" in few.candidates[0].reason


@pytest.mark.parametrize(("similarity", "k"), [(0.24, 0), (0.25, 5), (0.27, 10), (0.28, 15), (0.29, 25), (0.31, 30)])
def test_the_published_table_begins_at_its_cosines(similarity: float, k: int) -> None:
    made = plan([LARGE], pictures=[(similarity, with_picture("a"))])
    assert made.candidates[0].allowed_step == k


def test_the_cheaper_of_latent_and_picture_wins_and_the_other_says_why_not() -> None:
    one = with_picture("a")
    small = plan(latents=[(0.92, one)], pictures=[(0.7, one)])  # 30 steps of large against 30 of small
    assert (small.source, small.model) == (PlanSource.IMAGE, "small")
    assert small.fallback is None
    assert "costs 30 steps of large, the chosen one 9.3" in small.candidates[0].reason

    latent = plan([LARGE], latents=[(0.92, one)], pictures=[(0.26, one)])  # K = 20 against k = 5
    assert (latent.source, latent.start_step) == (PlanSource.LATENT, 20)
    assert "costs 45.3 steps of large, the chosen one 30" in latent.candidates[1].reason


def test_a_latent_hit_carries_its_image_plan_unless_it_names_a_model() -> None:
    one = with_picture("a")
    slow = replace(SMALL, pace=Pace())
    made = plan([slow], latents=[(0.96, one)], pictures=[(0.7, one)])  # 25 steps against 30
    assert (made.source, made.start_step) == (PlanSource.LATENT, 25)
    assert made.fallback is not None
    assert (made.fallback.source, made.fallback.model, made.fallback.start_step) == (PlanSource.IMAGE, "small", 20)
    assert made.fallback.candidates == ()
    named = plan([replace(LARGE, pace=Pace())], latents=[(0.96, one)], pictures=[(0.26, one)], quality="large")
    assert named.source is PlanSource.LATENT
    assert named.fallback is None


def test_equal_costs_go_to_the_latent_then_to_the_more_similar() -> None:
    one, two = with_picture("a"), with_picture("b")
    same = replace(LARGE, table_of=lambda model, weights: ImageTable(LOW), pace=Pace())
    made = plan([same], latents=[(0.92, one)], pictures=[(0.7, one)])  # 20 of 50 both
    assert made.source is PlanSource.LATENT
    assert "costs as much as the chosen latent" in made.candidates[1].reason
    assert plan([same], pictures=[(0.65, one), (0.7, two)]).entry_id == "b"


def test_a_ratio_that_nobody_measured_is_one() -> None:
    large, small = Latency(0.03, 0.01, ("64x64", "1")), Latency(0.01, 0.005, ("64x64", "1"))
    pace = pace_of([small], [large])
    assert pace.known
    assert [pace.step, pace.encode] == pytest.approx([1 / 3, 1 / 6])
    unlike = Latency(0.02, 0.005, ("64x64", "2"))
    for others in ([], [unlike]):
        assert pace_of(others, [large]) == Pace()
    assert pace_of([unlike, small], [large]) == pace  # one was measured here, of the other only what ships is known
    assert pace_of([unlike, small], [Latency(0.04, 0.01, ("64x64", "2")), large]).step == 0.5
    slow = Latency(0.09, 0.03, ("64x64", "1"), here=True)  # large profiled on a slow machine, small as it ships
    assert pace_of([small], [slow, large]) == pace
    assert pace_of([small], [slow]).step == pytest.approx(1 / 9)
    assert cost_of(Pace(0.5, 2.0), 50, 10, picture=True) == 22
    assert cost_of(Pace(0.5, 2.0), 50, 10, picture=False) == 20


def test_of_equals_the_small_model_is_named_first() -> None:
    made = plan(
        [replace(LARGE, table_of=SMALL.table_of, pace=Pace()), replace(SMALL, pace=Pace())],
        pictures=[(0.7, with_picture("a"))],
    )
    assert [one.model for one in made.may_run] == ["small", "large"]


def test_who_may_not_see_a_picture_does_not_start_from_it() -> None:
    private = with_picture("a", scope=Scope.PRIVATE, user="bob")
    made = plan(pictures=[(0.7, private)])
    assert (made.source, made.candidates[0].reason) == (PlanSource.NOISE, "not visible to this caller")
    assert plan(pictures=[(0.7, entry("a"))]).candidates[0].reason == "its picture is no longer in the cache"


def test_a_picture_of_another_size_model_and_sampler_starts_all_the_same() -> None:
    other = with_picture("a", model="old", compat=replace(entry("x").compat, size=Size(96, 64), weights_hash="w9"))
    made = plan(pictures=[(0.7, other)])
    assert made.source is PlanSource.IMAGE
    assert "resized from 96x64" in made.candidates[0].reason


def test_a_table_that_was_measured_otherwise_is_not_used_and_the_plan_says_so() -> None:
    why = "k_table: large from images of large was measured with another encoder; run `afterimage profile`"
    unfit = replace(LARGE, table_of=lambda model, weights: ImageTable(None, why, misfit=True))
    made = plan([unfit], pictures=[(0.9, with_picture("a"))])
    assert (made.source, made.degraded, made.candidates[0].reason) == (PlanSource.NOISE, (why,), why)


def test_named_models_keep_latents_of_what_they_draw_from_a_picture() -> None:
    made = plan([LARGE], pictures=[(0.26, with_picture("a"))], quality="large")
    assert (made.source, made.start_step, made.capture_steps) == (PlanSource.IMAGE, 5, (10, 15, 20, 25))


def test_every_offer_is_weighed_by_cost_before_similarity() -> None:
    state = State("a", 10, "k", 1, "fp16", "s")
    near, cheap = Candidate("a", "latent", 0.99, 10, 10), Candidate("b", "latent", 0.5, 20, 20)
    dear = Option(near, (Start("large", 50, 10, 40.0, state),))
    best = choose([dear, Option(cheap, (Start("large", 50, 20, 30.0, state),))])
    assert best is not None
    assert best.candidate is cheap


TURBO = Runner("turbo", "w3", lambda model, weights: ImageTable(MODM), Pace(), 1.0, small=True, own_steps=10)


def test_a_model_with_a_t_of_its_own_starts_at_the_same_noise_level_of_its_own_schedule() -> None:
    made = plan([TURBO, LARGE], pictures=[(0.285, with_picture("a"))])  # k = 15 of 50
    assert made.may_run == (ModelPlan("turbo", 3, 1.0, 10), ModelPlan("large", 15))
    assert (made.model, made.start_step, made.run_steps(50)) == ("turbo", 3, 10)
    assert replace(made, model="large").run_steps(50) == 50
    assert made.candidates[0].reason == "turbo starts after step 3 of 10, large after step 15"
    assert made.reason.startswith("Starts after 3 of 10 steps with turbo, large after 15 from an image by large")
    assert made.capture_steps == ()


def test_steps_of_its_own_are_what_a_start_costs() -> None:
    one = with_picture("a")
    made = plan([TURBO, LARGE], latents=[(0.96, one)], pictures=[(0.285, one)])  # 25 steps against 7
    assert (made.source, made.model) == (PlanSource.IMAGE, "turbo")
    assert "costs 25 steps of large, the chosen one 7" in made.candidates[0].reason
    few = plan([TURBO], pictures=[(0.285, one)], steps=6)  # 7 of its own are more than 6 from noise
    assert (few.source, few.model) == (PlanSource.NOISE, "large")
    assert "costs 7 steps of large, noise 6" in few.candidates[0].reason
    assert few.reason == "Generated from noise: no allowed start costs less than 6 steps from noise."


def test_no_start_where_the_nearest_noise_level_is_that_of_noise() -> None:
    made = plan([replace(TURBO, own_steps=4)], pictures=[(0.26, with_picture("a"))])  # k = 5 of 50
    assert made.source is PlanSource.NOISE


def test_an_image_below_the_floor_starts_nothing() -> None:
    floored = replace(SMALL, table_of=lambda model, weights: ImageTable(replace(LOW, floor=0.28)))
    below = plan([floored], pictures=[(0.2, with_picture("a"))])
    assert below.source is PlanSource.NOISE
    assert "0.200 is not above 0.280" in below.reason
    assert plan([floored], pictures=[(0.29, with_picture("a"))]).start_step == 5
    assert plan([SMALL], pictures=[(0.2, with_picture("a"))]).start_step == 5
