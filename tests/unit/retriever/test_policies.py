"""The policies of reuse: all that differs between them is the bound."""

from __future__ import annotations

from typing import Literal

import pytest

from services.retriever.bounds import IMAGE, LATENT, Near
from services.retriever.policies import bound_of
from services.retriever.question import Question
from services.retriever.tables import Known
from shared.domain.types import PlanSource
from shared.models.card_lookup import find_card
from shared.models.k_table import CLIP_L14, FIG_10, EncoderId
from shared.runtime.settings import Settings
from tests.unit.cached import request, unit
from tests.unit.retriever.conftest import house

Policy = Literal["auto", "nirvana", "modm"]
CARD = find_card("noop:")


@pytest.mark.parametrize(("policy", "ks"), [("auto", [25, 30]), ("nirvana", [25, 0]), ("modm", [0, 30])])
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
    ]
    assert bound.latest(near, 50) == ks
    assert not notes


@pytest.mark.parametrize(("policy", "source"), [("nirvana", PlanSource.LATENT), ("modm", PlanSource.NOISE)])
async def test_a_policy_without_latents_searches_none(noop: Settings, policy: Policy, source: PlanSource) -> None:
    async with house(noop.model_copy(update={"reuse_bound": policy})) as home:
        await home.cache(request(), unit(1))
        plan = await home.plan(request("x"), unit(1))
        assert (plan.source, plan.looked_up) == (source, source is PlanSource.LATENT)
        assert ("starts from images alone" in plan.reason) == (policy == "modm")
        assert (await home.plan(request(), unit(1), seed_given=True)).source is PlanSource.EXACT
