"""Answers that cannot be true are told from those that can."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from services.gateway.response_checks import NonsenseError, check_plan, check_vector
from shared.domain.parts import Parts
from shared.domain.types import ModelPlan, Plan, PlanSource, Request, Size, Source, from_json, to_json, vector_bytes
from shared.models.card import ModelCard
from shared.runtime.rpc_types import plan_from_proto, plan_to_proto

CARD = ModelCard(name="noop", path="noop:")
REQUEST = Request(prompt="a fox", size=Size(64, 64), steps=25, guidance=2.0, seed=1)
PLAN = Plan(PlanSource.LATENT, "noop", start_step=5, sources=(Source("e", "states/1"),), capture_steps=(10,))


def test_unit_vectors_pass_and_others_do_not() -> None:
    vector = np.zeros(8, dtype=np.float32)
    vector[0] = 1
    assert check_vector(vector_bytes(vector)) == vector_bytes(vector)
    for wrong in (b"", b"abc", vector_bytes(vector * 2), vector_bytes(vector * 0), vector_bytes(vector * np.nan)):
        with pytest.raises(NonsenseError):
            check_vector(wrong)


def test_plans_that_cannot_be_drawn_are_refused() -> None:
    held = replace(PLAN, region_until=23)
    assert [check_plan(one, REQUEST, CARD) for one in (PLAN, held)] == [PLAN, held]
    for wrong in (
        replace(PLAN, model="other"),
        replace(PLAN, start_step=25),
        replace(PLAN, start_step=-1),
        replace(PLAN, sources=(Source("e"),)),
        replace(PLAN, sources=()),
        replace(PLAN, start_step=0),
        replace(PLAN, source=PlanSource.NOISE),
        replace(PLAN, source=PlanSource.STITCHED),
        replace(PLAN, capture_steps=(25,)),
        replace(PLAN, miss_model="nobody's"),
        replace(PLAN, region_until=5),
        replace(PLAN, region_until=25),
        replace(held, source=PlanSource.IMAGE),
        replace(PLAN, fresh_noise=float("nan")),
        replace(PLAN, may_run=(ModelPlan("noop", 5, guidance=float("nan")),)),
        replace(PLAN, fallback=replace(PLAN, start_step=25)),
    ):
        with pytest.raises(NonsenseError):
            check_plan(wrong, REQUEST, CARD)


def test_a_pair_names_two_entries_with_masks() -> None:
    sources = (Source("e", "states/1", mask_key="masks/1"), Source("f", "states/2", mask_key="masks/2"))
    pair = replace(PLAN, source=PlanSource.STITCHED, sources=sources, fallback=PLAN)
    assert check_plan(pair, REQUEST, CARD) is pair
    sent = replace(pair, parts=Parts("a fox", "snow"), root="e", background_root="f")
    assert plan_from_proto(plan_to_proto(sent)) == sent
    assert from_json(Plan, to_json(sent)) == sent
    for wrong in (
        sources[:1],
        (sources[0], sources[0]),
        (sources[0], replace(sources[1], mask_key="")),
        (*sources, *sources),
    ):
        with pytest.raises(NonsenseError):
            check_plan(replace(pair, sources=wrong), REQUEST, CARD)


def test_a_refiner_may_have_a_t_of_its_own_and_the_model_that_was_asked_for_may_not() -> None:
    able = (ModelPlan("turbo", 3, 1.0, 10), ModelPlan("noop", 7))
    plan = Plan(PlanSource.IMAGE, "turbo", start_step=3, sources=(Source("e", "pictures/1"),), may_run=able)
    assert check_plan(plan, REQUEST, CARD, ("noop", "turbo")) is plan
    assert check_plan(replace(plan, model="noop", start_step=24), REQUEST, CARD, ("noop", "turbo"))
    for wrong in (
        replace(plan, start_step=10),
        replace(plan, may_run=(replace(able[0], start_step=10),)),
        replace(plan, model="noop", may_run=(replace(able[1], steps=50),)),
    ):
        with pytest.raises(NonsenseError):
            check_plan(wrong, REQUEST, CARD, ("noop", "turbo"))


def test_t_is_the_requests_or_one_that_the_card_lists() -> None:
    card, auto = replace(CARD, auto_steps=(5, 50)), replace(REQUEST, steps=50, steps_auto=True)
    few = replace(PLAN, start_step=2, capture_steps=(3,), may_run=(ModelPlan("noop", 2, steps=5),), miss_steps=5)
    noise = Plan(PlanSource.NOISE, "noop", capture_steps=(1, 2), may_run=(ModelPlan("noop", 0, steps=5),))
    assert check_plan(few, auto, card) is few
    assert check_plan(noise, auto, card) is noise
    unprompted = replace(noise, may_run=(ModelPlan("noop", 0, steps=5, prompted_from=4),))
    assert plan_from_proto(plan_to_proto(unprompted)) == unprompted
    assert check_plan(unprompted, auto, card) is unprompted
    for wrong in (
        replace(few, start_step=5),
        replace(few, capture_steps=(5,)),
        replace(few, miss_steps=10),
        replace(noise, may_run=(ModelPlan("noop", 0, steps=5, prompted_from=5),)),
        replace(few, may_run=(ModelPlan("noop", 2, steps=10),)),
        replace(noise, may_run=(ModelPlan("noop", 0, steps=1000),)),
    ):
        with pytest.raises(NonsenseError):
            check_plan(wrong, auto, card)
    with pytest.raises(NonsenseError):
        check_plan(few, REQUEST, card)


def test_a_stored_picture_answers_only_where_it_may() -> None:
    exact = Plan(PlanSource.EXACT, "noop", start_step=25, sources=(Source("e", "pictures/1"),))
    assert check_plan(exact, REQUEST, CARD) is exact
    with pytest.raises(NonsenseError):
        check_plan(exact, REQUEST, CARD, exact=False)  # its picture could not be read a moment ago
    with pytest.raises(NonsenseError):
        check_plan(replace(PLAN, fallback=exact), REQUEST, CARD)
    anothers = replace(exact, model="served once")
    assert check_plan(anothers, REQUEST, CARD) is anothers
    with pytest.raises(NonsenseError):
        check_plan(anothers, replace(REQUEST, quality="large"), CARD)
