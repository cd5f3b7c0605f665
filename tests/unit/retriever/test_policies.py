"""The policies of reuse: all that differs between them is the bound."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from services.retriever.bounds import IMAGE, LATENT, PAIR, Near
from services.retriever.policies import bound_of
from services.retriever.question import Question
from services.retriever.tables import Known
from shared.domain.types import PlanSource
from shared.models.card_lookup import find_card
from shared.models.k_table import CLIP_L14, FIG_10, EncoderId, KTable, Level
from shared.runtime.settings import Settings
from tests.unit.cached import request, unit
from tests.unit.retriever.conftest import house

Policy = Literal["auto", "nirvana", "flexcache", "modm"]
CARD = find_card("noop:")


@pytest.mark.parametrize(
    ("policy", "ks"), [("auto", [25, 30, 0]), ("nirvana", [25, 0, 0]), ("flexcache", [25, 0, 10]), ("modm", [0, 30, 0])]
)
def test_a_policy_allows_its_kind_of_start(settings: Settings, policy: Policy, ks: list[int]) -> None:
    settings = settings.model_copy(update={"reuse_bound": policy})
    known, encoder = Known(CARD, "noop:", (FIG_10,), (), ()), EncoderId("e1", CLIP_L14)
    asked = request()
    question = Question(asked, "noop", CARD.compat(asked.size, 50), "e1")
    latents, notes = known.latent_tables(encoder, settings)
    bound = bound_of(known, [known], question, encoder, latents, settings)
    near = [
        Near(LATENT, 0.97, run_by="noop"),
        Near(IMAGE, 0.31, made_by=("noop", CARD.weights_hash), run_by="noop"),
        Near(PAIR, 0.76, run_by="noop"),
    ]
    assert bound.latest(near, 50) == ks
    assert not notes


@pytest.mark.parametrize(
    ("unprompted", "steps", "ks"), [(0.0, (10,), [2, 10]), (0.1, (10,), [0, 0]), (0.0, (10, 50), [2, 5])]
)
def test_a_table_of_few_steps_counts_at_every_t_where_none_of_the_default_t_was_measured(
    settings: Settings, unprompted: float, steps: tuple[int, ...], ks: list[int]
) -> None:
    card = replace(find_card("bundled:large"), unprompted=unprompted)
    tables = [
        KTable((Level(of // 5 if of == 10 else 5, 0.5),), of, card.name, card.weights_hash, "e1", 0.95) for of in steps
    ]
    known, encoder = Known(card, "large", tuple(tables), (), ()), EncoderId("e1")
    latents, notes = known.latent_tables(encoder, settings)
    question = Question(request(), "large", card.compat(request().size, 50), "e1")
    bound = bound_of(known, [known], question, encoder, latents, settings)
    assert [bound.latest([Near(LATENT, 0.9, run_by="large")], of) for of in (10, 50)] == [[k] for k in ks]
    assert not notes


@pytest.mark.parametrize(("policy", "source"), [("nirvana", PlanSource.LATENT), ("modm", PlanSource.NOISE)])
async def test_a_policy_without_latents_searches_none(noop: Settings, policy: Policy, source: PlanSource) -> None:
    async with house(noop.model_copy(update={"reuse_bound": policy})) as home:
        await home.cache(request(), unit(1))
        plan = await home.plan(request("x"), unit(1))
        assert (plan.source, plan.looked_up) == (source, source is PlanSource.LATENT)
        assert ("starts from images alone" in plan.reason) == (policy == "modm")
        assert (await home.plan(request(), unit(1), seed_given=True)).source is PlanSource.EXACT
