"""What a request with a deadline finds: forecasts by lane and model, behind the request's other images."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import AsyncMock

import pytest

from services.gateway.finish import Fleet, Standalones, finish_s
from services.gateway.forecasts import Predictor, lanes_for
from shared.catalog.jobs.lanes import Backlog
from shared.domain.errors import LateError
from shared.domain.forecasts import forecast_of
from shared.domain.types import Job, JobState, Modality, Plan, PlanSource, Request, Size
from shared.models import find_card
from shared.models.k_table import NoProfiles
from shared.models.standalone import Line

LARGE, SMALL = find_card("bundled:large"), find_card("bundled:small")
SERVED = {card.name: card for card in (LARGE, SMALL)}
REQUEST = Request("a fox", Size(64, 64), 50, LARGE.default_guidance, 1, deadline_s=5.0)
FLEET = Fleet(workers=1, rows=2, step_s=Line(0.1, 0.1))


class Lanes:
    """Backlogs by lane; an idle lane has none."""

    def __init__(self, **queued: int) -> None:
        self._queued = queued

    async def backlogs(self, lane: str) -> dict[str, Backlog]:
        count = self._queued.get(lane.rpartition(".")[2], 0)
        return {REQUEST.tenant: Backlog(queued=count, queued_s=2.0 * count, running=2 * bool(count))}


async def predictor(unable: tuple[str, ...] = (), **queued: int) -> tuple[Predictor, Standalones]:
    standalones = Standalones(SERVED, NoProfiles())
    await standalones.read()
    return Predictor(Lanes(**queued), SERVED, standalones, lambda *_: FLEET, lambda: unable), standalones


def test_lanes_are_those_that_a_plan_may_take() -> None:
    assert list(lanes_for(REQUEST, LARGE, SERVED)) == ["generate.large", "generate.small", "generate.refine"]
    assert list(lanes_for(replace(REQUEST, quality="large"), LARGE, SERVED)) == ["generate.large"]
    assert list(lanes_for(replace(REQUEST, modality=Modality.VIDEO), LARGE, SERVED)) == ["generate.large"]
    assert list(lanes_for(REQUEST, LARGE, {LARGE.name: LARGE})) == ["generate.large"]


async def test_forecasts_equal_the_predicted_finish_of_a_plan() -> None:
    made, standalones = await predictor(large=3)
    ahead = await made.ahead(REQUEST, LARGE)
    assert ahead is not None
    forecasts = ahead.forecasts()
    for source, model in ((PlanSource.NOISE, "large"), (PlanSource.NOISE, "small"), (PlanSource.IMAGE, "small")):
        plan = Plan(source, model)
        found = forecast_of(plan, REQUEST, SERVED, forecasts)
        assert found is not None
        guided = replace(REQUEST, guidance=REQUEST.guidance if model == "large" else SMALL.default_guidance)
        own_s = standalones.plan_s(guided, plan, FLEET)
        assert found.alone_s(50) == pytest.approx(own_s)
        backlog = (await Lanes(large=3).backlogs(found.lane))[REQUEST.tenant]
        assert found.finish_s(50) == pytest.approx(finish_s(own_s, backlog, FLEET))
    behind = forecast_of(Plan(PlanSource.NOISE, "large"), REQUEST, SERVED, ahead.forecasts([plan]))
    assert behind is not None
    assert behind.wait_s > forecasts[0].wait_s


async def test_models_that_no_worker_can_run_and_requests_without_a_deadline_have_none() -> None:
    made, _ = await predictor(unable=("small",))
    ahead = await made.ahead(REQUEST, LARGE)
    assert ahead is not None
    assert {one.model for one in ahead.forecasts()} == {"large"}
    gone, _ = await predictor(unable=("small", "large"))
    ahead = await gone.ahead(REQUEST, LARGE)
    assert ahead is not None
    assert {one.model for one in ahead.forecasts()} == {"large"}  # without it no plan would be known as late
    assert await made.ahead(replace(REQUEST, deadline_s=None), LARGE) is None
    assert await made.ahead(replace(REQUEST, from_job="j"), LARGE) is None


async def test_exact_repeats_of_the_same_request_delay_nothing() -> None:
    made, _ = await predictor(large=3)
    ahead = await made.ahead(REQUEST, LARGE)
    assert ahead is not None
    repeat = Plan(PlanSource.EXACT, "large", start_step=50)
    assert ahead.forecasts([repeat]) == ahead.forecasts()
    whole = Plan(PlanSource.NOISE, "large")
    new = Job("b", REQUEST, whole, JobState.QUEUED, lane="generate.large", standalone_s=2.0)
    done = replace(new, id="a", plan=repeat, state=JobState.SUCCEEDED, standalone_s=0.0)
    (alone,) = await made.predicted([new], refuse=False)
    assert await made.predicted([done, new], refuse=False) == [done, alone]


async def test_requests_that_come_at_once_find_each_other() -> None:
    made, _ = await predictor()
    new = Job("a", REQUEST, Plan(PlanSource.NOISE, "large"), JobState.QUEUED, lane="generate.large", standalone_s=2.0)

    async def predicted(name: str) -> float:
        (job,) = await made.predicted([replace(new, id=name)], refuse=False)
        return job.predicted_s or 0.0

    for name in "abc":
        made.comes(name, [REQUEST], LARGE)
    for name, jobs in (("a", 0), ("b", 1), ("c", 2), ("of nobody", 3)):
        assert await predicted(name) == pytest.approx(finish_s(2.0, Backlog(jobs, 2.0 * jobs), FLEET))
        ahead = await made.ahead(REQUEST, LARGE, name)
        assert ahead is not None
        assert ahead.backlogs["generate.large"].queued == jobs
        assert ahead.backlogs["generate.small"].queued == 0
    made.came("a")
    assert await predicted("b") == pytest.approx(finish_s(2.0, Backlog(), FLEET))
    with pytest.raises(LateError):
        await made.predicted([replace(new, id="c", request=replace(REQUEST, deadline_s=2.1))], refuse=True)


async def test_of_another_tenant_as_many_count_as_fair_shares_serve_before() -> None:
    made, _ = await predictor()
    others = [replace(REQUEST, tenant="other")] * 5
    made.comes("theirs", others, LARGE)
    made.comes("mine", [REQUEST], LARGE)
    waits = {"third": Backlog(queued=1, queued_s=2.0)}
    for lanes, before in ((Lanes(), 1), (Lanes(large=2), 2 + 3)):
        made._lanes = lanes
        found = await lanes.backlogs("generate.large")
        lanes.backlogs = AsyncMock(return_value=found | waits)  # type: ignore[method-assign]
        ahead = await made.ahead(REQUEST, LARGE, "mine")
        assert ahead is not None
        assert ahead.backlogs["generate.large"].queued == before + 1
