"""Where a plan waits, which model runs it, and what it becomes when no worker can run it as it was made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared.domain.ids import new_id
from shared.domain.parts import Parts
from shared.domain.plan_rules import (
    choose_model,
    hand_over,
    lane_for,
    noise_plan,
    only_model,
    reroute_plan,
    revalidate,
    scale_steps,
    use_fallback,
    whole_start,
    without_entries,
)
from shared.domain.types import CacheMode, Candidate, Lead, ModelPlan, Plan, PlanSource, Request, Size, Source
from shared.models.card import ModelCard
from shared.runtime.settings import Settings

REQUEST = Request("a fox", Size(64, 64), 50, 2.5, 7)
CARD = ModelCard(name="noop", path="noop:")
IMAGE = Plan(
    PlanSource.IMAGE, "small", 10, sources=(Source("e", "p"),), may_run=(ModelPlan("small", 10), ModelPlan("large", 5)),
    miss_model="large",
)  # fmt: skip
LATENT = Plan(
    PlanSource.LATENT, "large", 20, sources=(Source("e", "s"),), reason="near.", fallback=replace(IMAGE, reason="seen.")
)
PAIR = ("large", "small")


@pytest.mark.parametrize(
    ("plan", "quality", "served", "lane"),
    [
        (Plan(PlanSource.NOISE, "large"), "auto", PAIR, "generate.large"),
        (LATENT, "auto", PAIR, "generate.large"),
        (IMAGE, "auto", PAIR, "generate.refine"),
        (IMAGE, "small", PAIR, "generate.small"),
        (replace(IMAGE, model="large"), "large", PAIR, "generate.large"),
        (replace(IMAGE, model="large"), "auto", ("large",), "generate.large"),
    ],
)
def test_what_only_one_model_may_run_waits_in_its_lane(
    plan: Plan, quality: str, served: tuple[str, ...], lane: str
) -> None:
    assert lane_for(replace(REQUEST, quality=quality), plan, served) == lane


def test_a_hit_that_one_model_alone_may_draw_says_so() -> None:
    assert only_model(replace(IMAGE, may_run=IMAGE.may_run[:1])) == "small"
    assert only_model(IMAGE) == ""
    assert only_model(LATENT) == ""


def test_a_latent_hit_becomes_its_image_plan_where_nobody_runs_its_model() -> None:
    assert use_fallback(LATENT, None) is LATENT
    assert use_fallback(LATENT, {"large", "small"}) is LATENT
    assert use_fallback(replace(LATENT, fallback=None), {"small"}).source is PlanSource.LATENT
    assert use_fallback(LATENT, {"other"}) is LATENT  # nobody could take the picture either
    made = use_fallback(replace(LATENT, predicted_hit=True, found=True, looked_up=True), {"small"})
    assert (made.source, made.model, made.start_step) == (PlanSource.IMAGE, "small", 10)
    assert (made.predicted_hit, made.found, made.looked_up) == (True, True, True)
    assert "no worker runs large" in made.degraded[0]
    assert made.reason == "seen. Planned from a latent: near."


def test_a_worker_that_is_to_refine_with_its_own_model_does_so_if_it_may() -> None:
    plan = replace(IMAGE, may_run=(ModelPlan("small", 6, 1.0), ModelPlan("large", 3)))
    assert choose_model(plan, PAIR).model == "small"
    assert (choose_model(plan, PAIR, ["large"]).model, choose_model(plan, PAIR, ["large"]).start_step) == ("large", 3)
    only = replace(plan, may_run=plan.may_run[:1])
    assert choose_model(only, PAIR, ["large"]).model == "small"


def test_capture_steps_on_another_schedule() -> None:
    assert scale_steps((5, 10, 15, 20, 25), 50) == (5, 10, 15, 20, 25)
    assert scale_steps((5, 10, 15, 20, 25), 20) == (2, 4, 6, 8, 10)
    assert scale_steps((5, 10, 15, 20, 25), 4) == (1, 2)
    assert scale_steps((5, 10), 1) == ()


def test_a_plan_from_noise_keeps_states_only_where_the_request_writes(settings: Settings) -> None:
    model, kept, asked = (CARD.name, CARD.weights_hash), settings.capture_steps, replace(REQUEST, steps=25)
    plan = noise_plan(asked, *model, kept, "why", degraded=("retriever: away",))
    assert (plan.source, plan.start_step, plan.capture_steps) == (
        PlanSource.NOISE, 0, (2, 5, 7, 10, 12, 15, 17, 20, 22)
    )  # fmt: skip
    assert plan.weights_hash == CARD.weights_hash
    for cache in (CacheMode.READ, CacheMode.OFF):
        assert noise_plan(replace(asked, cache=cache), *model, kept, "").capture_steps == ()
    assert noise_plan(replace(asked, steps=1), *model, kept, "").capture_steps == ()


def test_an_image_hit_is_handed_to_a_model_that_runs_and_is_a_miss_only_where_that_helps() -> None:
    only = replace(IMAGE, may_run=IMAGE.may_run[:1])
    assert hand_over(IMAGE, {"large"}) == replace(IMAGE, model="large", start_step=5)
    assert hand_over(IMAGE, None) == hand_over(IMAGE, {"small", "large"}) == IMAGE
    miss = hand_over(only, {"large"})
    assert (miss.source, miss.model, miss.state_key, miss.fallback) == (PlanSource.NOISE, "large", "", None)
    assert miss.degraded == ("workers: no worker runs small; generated from noise",)
    assert hand_over(replace(only, miss_model="small"), {"large"}).source is PlanSource.IMAGE
    assert reroute_plan(REQUEST, only, {"large"}) == miss
    assert reroute_plan(REQUEST, replace(only, miss_model="small"), {"large"}) is None
    assert reroute_plan(replace(REQUEST, quality="small"), only, {"large"}) == only
    chosen = replace(IMAGE, model=IMAGE.may_run[-1].model, start_step=IMAGE.may_run[-1].start_step)
    assert reroute_plan(REQUEST, chosen, {one.model for one in IMAGE.may_run}) == chosen  # its own model runs


def test_other_weights_make_a_latent_hit_a_miss_and_leave_an_image_hit() -> None:
    assert revalidate(replace(IMAGE, weights_hash="now"), "now") == replace(IMAGE, weights_hash="now")
    assert revalidate(IMAGE, "now") == replace(IMAGE, weights_hash="now")
    miss = revalidate(LATENT, "now")
    assert (miss.source, miss.start_step) == (PlanSource.NOISE, 0)
    assert miss.degraded == ("weights: changed since the plan was made",)


def test_another_reuse_between_steps_makes_a_latent_hit_a_miss() -> None:
    reusing = replace(LATENT, weights_hash="w", step_reuse="forest")
    assert revalidate(reusing, "w", "forest") is reusing
    miss = revalidate(reusing, "w")
    assert (miss.source, miss.degraded) == (PlanSource.NOISE, ("step_reuse: changed since the plan was made",))
    # the worker sets its own for the miss, and for an image hit
    for plan in (miss, replace(IMAGE, weights_hash="w")):
        assert revalidate(plan, "w", "other").step_reuse == "other"


def test_a_pair_that_lost_a_part_starts_from_its_whole_prompt() -> None:
    whole = replace(LATENT, fallback=None, start_step=10, similarity=0.8, root="e", weights_hash="w")
    found = (Candidate("e", "latent", 0.8, 10, 10), Candidate("a", "pair", 0.9, 20, 20, chosen=True))
    pair = Plan(
        PlanSource.STITCHED, "large", 20, sources=(Source("a", "s"), Source("b", "t")), fallback=whole, root="a",
        background_root="b", weights_hash="w", parts=Parts("a fox", "snow"), candidates=found, reason="two.",
    )  # fmt: skip
    made = whole_start(pair, "blobs: gone")
    assert made is not None
    assert (made.source, made.start_step, made.sources, made.roots) == (PlanSource.LATENT, 10, whole.sources, ("e",))
    assert made.degraded == ("blobs: gone; starts from one entry instead of a pair",)
    assert [one.chosen for one in made.candidates] == [True, False]
    assert (made.parts, made.reason) == (pair.parts, "near. Planned from a pair: two.")
    assert whole_start(replace(pair, fallback=None), "gone") is None
    assert whole_start(replace(pair, fallback=IMAGE), "gone") is None
    assert revalidate(pair, "w") is pair
    miss = revalidate(pair, "newer")
    assert (miss.source, miss.roots, miss.fallback) == (PlanSource.NOISE, (), None)
    # nobody runs the model of the pair: its whole start would need the same model
    assert use_fallback(pair, ["small"]) is pair


def test_an_erased_jobs_image_leaves_the_plans_that_start_from_its_repeat() -> None:
    gone, copy = new_id(), new_id()
    key = f"pictures/{gone}-1.png"
    plan = replace(IMAGE, sources=(Source(copy, key, "hash"),), lead=Lead(copy, key, "hash", 4, 2))
    blank = without_entries(plan, {gone})
    assert blank.sources == (Source(copy, "", ""),)
    assert blank.lead == Lead(copy, "", "", 4, 2)
    assert without_entries(plan, {new_id()}) == plan
