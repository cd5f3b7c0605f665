"""Classes of deadlines, predictions and refusals, from the client to the worker and back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY

from services.embedder.encoder import encoder_folder, encoder_hash
from services.gateway.finish import Standalones
from shared.catalog import open_catalog
from shared.client import Accepted, Picture
from shared.domain.errors import InvalidRequestError, OverloadedError
from shared.domain.types import PlanSource
from shared.models.card_lookup import find_card
from shared.models.k_table import Cell, KTable, Level, table_to_json
from tests.flows.conftest import Make
from tests.flows.house import house

MODEL = "noop:?step_ms=2&row_ms=2"
"""50 steps take .2 s alone."""


def ended(slo: str, outcome: str) -> float:
    return REGISTRY.get_sample_value("afterimage_deadlines_total", {"slo": slo, "outcome": outcome}) or 0.0


async def test_a_class_becomes_seconds_and_the_job_says_whether_it_met_them(make: Make) -> None:
    before = ended("standard", "met"), ended("none", "missed")
    async with house(make(large=MODEL, slo_classes={"standard": 100.0})) as it:
        events = [event async for event in it.client.generate_stream("a red fox", seed=1, steps=50, slo="standard")]
        accepted, picture = events[0], events[-1]
        assert isinstance(accepted, Accepted)
        assert isinstance(picture, Picture)
        job = picture.job
        assert job.request.slo == "standard"
        assert job.request.deadline_s == pytest.approx(100 * 0.2)
        assert accepted.predicted_s == job.predicted_s == pytest.approx(0.2)
        assert (await it.client.get_job(job.id)).job.deadline_met is True
        late = await it.client.generate("a blue fox", seed=1, steps=50, deadline_s=0.01)
        assert late.job.deadline_met is False
        with pytest.raises(InvalidRequestError, match=r"slo: must be one of standard .*'fast'"):
            await it.client.generate("a fox", slo="fast")
        with pytest.raises(InvalidRequestError, match="slo: name slo or deadline_s, not both"):
            await it.client.generate("a fox", slo="standard", deadline_s=3.0)
        async with asyncio.timeout(20):
            while (ended("standard", "met"), ended("none", "missed")) != (before[0] + 1, before[1] + 1):
                await asyncio.sleep(0.01)


async def test_a_request_that_would_be_late_is_refused_where_that_is_set(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(make(large=MODEL, refuse_late=True)) as it:
        with pytest.raises(InvalidRequestError, match=r"deadline_s: must leave at least 0\.2 s"):
            await it.client.generate("a red fox", steps=50, deadline_s=0.05)
        first = await it.client.generate("a red fox", steps=50, deadline_s=60.0, idempotency_key="k")
        # later the cache has lost what the first plan found, and the request alone takes too long
        monkeypatch.setattr(Standalones, "plan_s", lambda *_: 100.0)
        with pytest.raises(InvalidRequestError, match=r"at least 100 s"):
            await it.client.generate("a red fox", steps=50, deadline_s=60.0)
        again = await it.client.generate("a red fox", steps=50, deadline_s=60.0, idempotency_key="k")
        assert again.job.id == first.job.id


async def test_a_refusal_names_a_delay(make: Make) -> None:
    async with house(make(large=MODEL, refuse_late=True, max_rows=1)) as it:
        asking = [asyncio.create_task(it.client.generate(f"fox {n}", steps=50, cache="off")) for n in range(4)]
        async with asyncio.timeout(20):
            while len((await it.client.list_jobs())[0]) < 4:
                await asyncio.sleep(0.005)
        with pytest.raises(OverloadedError, match=r"cannot be met.*retry in .* s, or set deadline_s") as late:
            await it.client.generate("a red fox", steps=50, deadline_s=0.22, cache="off")
        assert late.value.retry_after_s
        await asyncio.gather(*asking)


QUICK = "noop:?name=quick&role=small&step_ms=1&row_ms=1"
"""50 steps take .1 s alone."""


async def test_the_small_model_meets_a_deadline_where_it_was_measured_to_keep_the_quality(make: Make) -> None:
    settings = make(large="noop:?name=slow&step_ms=10&row_ms=10", small=QUICK, refuse_late=True)
    slow, quick = find_card(settings.large), find_card(QUICK)
    kept = Cell(0, -1.0, 1.0, 400, 1.0, 0.99, safe=True)
    table = KTable((Level(5, 0.5),), 50, "quick", quick.weights_hash, alpha=0.95, noise=kept)
    table = replace(
        table,
        images_from="slow",
        images_weights_hash=slow.weights_hash,
        encoder_hash=encoder_hash(encoder_folder(settings.encoder)),
    )
    catalog = await open_catalog(settings.catalog_url)
    await catalog.profiles.put("image_k_table_0.95", "quick from slow", quick.weights_hash, table_to_json(table))
    await catalog.close()
    async with house(settings) as it:
        usual = await it.client.generate("a red fox", seed=1, steps=50, deadline_s=60.0)
        assert (usual.model, usual.plan.for_deadline) == ("slow", "")
        hurried = await it.client.generate("a blue car", seed=2, steps=50, deadline_s=0.7)
        assert (hurried.model, hurried.plan.source, hurried.steps_run) == ("quick", PlanSource.NOISE, 50)
        assert hurried.plan.for_deadline == "model"
        assert "Taken to meet the deadline of 0.7 s: quick after step 0 of 50" in hurried.plan.reason
        await it.settled(hurried)
        relaxed = await it.client.generate("a blue car", seed=2, steps=50, deadline_s=60.0)
        assert relaxed.plan.source is not PlanSource.EXACT
        view = await it.client.get_job(hurried.job.id)
        assert view.job.plan == hurried.plan
        with pytest.raises(
            InvalidRequestError, match=r"must leave at least 1.* s, the predicted time of this request alone \(got"
        ):
            await it.client.generate("a blue car", seed=3, steps=50, deadline_s=0.7, quality="slow")
        with pytest.raises(InvalidRequestError, match=r"at least 0\.1 s.*alone \(got"):
            await it.client.generate("two green trees", seed=3, steps=50, deadline_s=0.05)
