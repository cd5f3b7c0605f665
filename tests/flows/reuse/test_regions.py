"""Regions through the whole service, with the bundled model: a changed object, and what the client reads about it."""

from __future__ import annotations

from services.cli.display.words import where_it_started
from shared.domain.types import PlanSource
from tests.flows.conftest import Make
from tests.flows.house import house

BUTTERFLY = "by night in a desert, a little blue butterfly on the left side, 8-bit pixel art"


async def test_an_edit_holds_what_it_does_not_change(make: Make) -> None:
    settings = make(
        large="bundled:large", encoder="bundled:clip", layout="patches", patch_px=16, regions="on", predictor="always",
        image_tier="off",
    )  # fmt: skip
    async with house(settings) as it:
        first = await it.generate(BUTTERFLY, seed=1, steps=25)
        second = await it.generate(BUTTERFLY.replace("butterfly", "bus"), seed=2, steps=25)
        view = await it.client.get_job(second.job.id)

    assert (first.plan.source, first.plan.region_until, first.skipped) == (PlanSource.NOISE, 0, 0.0)
    plan = second.plan
    assert plan.source is PlanSource.LATENT, plan.reason
    assert plan.start_step + 1 < plan.region_until == 23
    assert plan.first_source.picture_sha256 == first.picture_sha256
    assert "keep that image's run until step 23" in plan.reason
    assert second.skipped == view.skipped > 0.0
    assert f", {second.skipped:.0%} of their work skipped" in where_it_started(second)
