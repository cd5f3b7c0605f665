"""The predicted finish, and what a request is told that would be late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from services.gateway.finish import UNKNOWN, Fleet, Standalones, check_in_time, finish_s, fleet_of
from shared.catalog.jobs.lanes import Backlog
from shared.domain.errors import InvalidRequestError, LateError, UnavailableError
from shared.domain.messages import WorkerReported
from shared.domain.types import Plan, PlanSource, Request, Size, Soonest
from shared.models import find_card
from shared.models.k_table import NoProfiles
from shared.models.standalone import Line, Standalone

REQUEST = Request("a fox", Size(64, 64), 50, 2.5, 1, deadline_s=5.0)
CARD = find_card("bundled:large")
FLEET = Fleet(workers=2, rows=4, step_s=Line(0.1, 0.1))
"""A step of four rows takes 2.5 times as long as one of one row."""


def test_on_idle_workers_a_request_takes_its_time_alone() -> None:
    assert finish_s(2.0, Backlog(), FLEET) == 2.0
    assert finish_s(2.0, Backlog(running=2), FLEET) == pytest.approx(2.0 * 1.5)  # beside one other on each worker


def test_behind_a_full_batch_it_waits_for_the_jobs_ahead() -> None:
    full = finish_s(2.0, Backlog(running=8), FLEET)
    assert full == pytest.approx(2.0 * 2.5)
    behind = finish_s(2.0, Backlog(queued=8, queued_s=16.0, running=8), FLEET)
    assert behind == pytest.approx(full + 16.0 * 2.5 / 8)
    assert finish_s(2.0, Backlog(queued=8, queued_s=16.0, running=8), replace(FLEET, workers=4)) < behind


def test_running_jobs_show_the_rows_of_workers_that_have_not_reported_yet() -> None:
    crowd = Backlog(queued=8, queued_s=16.0, running=32)
    assert finish_s(2.0, crowd, replace(FLEET, workers=1)) == finish_s(2.0, crowd, replace(FLEET, workers=8))


def test_reports_of_the_models_workers_count() -> None:
    def report(name: str, model: str, *step_s: tuple[str, int, float]) -> WorkerReported:
        return WorkerReported(name, "cpu", model, 0, 4, step_s, serves=(model,))

    reports = [
        report("a", "m", ("m", 1, 0.2), ("m", 4, 0.5)),
        report("b", "m", ("m", 1, 0.4), ("m", 4, 0.7)),
        report("c", "other", ("other", 1, 9.0)),
    ]
    fleet = fleet_of("m", reports, None, max_rows=8)
    assert (fleet.workers, fleet.rows, round(fleet.one_row_s, 6)) == (2, 4, 0.3)
    assert fleet.slowdown(4) == pytest.approx(0.6 / 0.3)
    idle = replace(report("d", "other", ("m", 1, 0.2)), serves=("m", "other"))
    assert fleet_of("m", [*reports, idle], None, max_rows=8).workers == 2  # it consumes the other model's lane
    assert fleet_of("m", [*reports, idle], None, max_rows=8, refines=True).workers == 3
    assert fleet_of("m", [idle, reports[2]], None, max_rows=8).workers == 1
    nobody = fleet_of("m", [], None, max_rows=8)
    assert (nobody.workers, nobody.rows, nobody.step_s, nobody.one_row_s) == (1, 8, UNKNOWN, 0.0)
    shipped = Standalone.of(CARD, None)
    scaled = fleet_of(CARD.name, [report("a", CARD.name, (CARD.name, 1, 2 * shipped.step_s(1)))], shipped, max_rows=8)
    assert scaled.one_row_s == pytest.approx(2 * shipped.step_s(1))
    assert scaled.slowdown(8) == pytest.approx(shipped.step_s(8) / shipped.step_s(1))


def test_a_batch_has_no_more_rows_than_its_pixels_allow() -> None:
    each, shipped = CARD.default_size.width * CARD.default_size.height, Standalone.of(CARD, None)
    assert fleet_of(CARD.name, [], shipped, 8, 2 * each + 1).rows == 2
    assert fleet_of(CARD.name, [], shipped, 8, each - 1).rows == 1
    assert fleet_of(CARD.name, [], shipped, 8).rows == 8
    little = WorkerReported(
        "a", "cpu", CARD.name, 0, 4, serves=(CARD.name,), pixels=((CARD.name, 9 * each), ("b", 3 * each))
    )
    assert fleet_of(CARD.name, [little], shipped, 8).rows == 3
    assert fleet_of(CARD.name, [little, replace(little, worker="b", pixels=())], shipped, 8).rows == 4


def test_a_late_request_is_told_when_it_could_be_in_time() -> None:
    check_in_time(REQUEST, 2.0, 5.0)
    check_in_time(replace(REQUEST, deadline_s=None), 2.0, 1e9)
    with pytest.raises(
        LateError, match=r"deadline_s: 5 s cannot be met.* 7\.3 s after.*retry in 2\.2 s.*7\.3$"
    ) as late:
        check_in_time(REQUEST, 2.0, 7.23)
    assert late.value.retry_after_s == pytest.approx(2.23)
    with pytest.raises(InvalidRequestError, match=r"slo: must leave at least 6 s.*'5 s'"):
        check_in_time(replace(REQUEST, slo="tight"), 6.0, 7.0)  # no delay helps


async def test_a_class_is_a_multiple_of_the_time_alone() -> None:
    known = Standalones({CARD.name: CARD}, NoProfiles())
    await known.read()
    fleet, whole = Fleet(), Plan(PlanSource.NOISE, CARD.name)
    alone_s = known.plan_s(REQUEST, whole, fleet)
    assert alone_s > 0
    assert known.slo_s(REQUEST, CARD.name, 5.0, fleet) == pytest.approx(5 * alone_s)
    hit = known.plan_s(REQUEST, replace(whole, source=PlanSource.LATENT, start_step=25), fleet)
    assert alone_s / 2 <= hit < alone_s  # decoding stays
    assert known.plan_s(replace(REQUEST, size=Size(96, 96)), whole, fleet) > alone_s
    assert known.plan_s(replace(REQUEST, guidance=1.0), whole, fleet) < alone_s
    one_row_s = 3 * Standalone.of(CARD, None).step_s(1)
    assert known.plan_s(REQUEST, whole, replace(fleet, one_row_s=one_row_s)) == pytest.approx(3 * alone_s)


async def test_without_step_times_a_class_says_nothing() -> None:
    unmeasured = Standalones({"noop": find_card("noop:")}, NoProfiles())
    await unmeasured.read()
    assert unmeasured.plan_s(REQUEST, Plan(PlanSource.NOISE, "noop"), Fleet()) == 0
    with pytest.raises(InvalidRequestError, match="slo: model 'noop' has no measured step times"):
        unmeasured.slo_s(replace(REQUEST, slo="tight"), "noop", 2.0, Fleet())


def test_a_profile_of_this_deployment_is_not_rescaled_by_reports() -> None:
    latency = {"step_s": {"1": 0.1, "2": 0.15}, "decode_s": 0.02}
    here = Standalone.of(CARD, latency)
    size, guidance = CARD.default_size, CARD.default_guidance
    assert here.seconds(size, 1, guidance, 10, one_row_s=9.0) == pytest.approx(10 * 0.1 + 0.02)


class Measured(NoProfiles):
    """A catalog whose latency changes, and that may be away."""

    def __init__(self) -> None:
        self.step_s, self.away = 0.1, False
        self.error: Exception = UnavailableError("gone fishing")

    async def get(self, kind: str, model: str, weights_hash: str) -> dict[str, Any]:  # type: ignore[override]
        if self.away:
            raise self.error
        return {"step_s": {"1": self.step_s, "2": 1.5 * self.step_s}, "decode_s": 0.0}


async def test_a_new_profile_counts_without_a_restart_and_an_outage_changes_nothing() -> None:
    profiles = Measured()
    known = Standalones({CARD.name: CARD}, profiles)
    request = replace(REQUEST, size=CARD.default_size, guidance=CARD.default_guidance)
    plan = Plan(PlanSource.NOISE, CARD.name)
    await known.read()
    assert known.plan_s(request, plan, Fleet()) == pytest.approx(50 * 0.1)
    assert known.pace_s(request, CARD.name, request.guidance, Fleet()) == pytest.approx((0.1, 0.0))
    profiles.step_s = 0.2
    await known.read()
    profiles.away = True
    for error in (UnavailableError("gone fishing"), ValueError("not JSON")):
        profiles.error = error
        await known.read()
        assert known.plan_s(request, plan, Fleet()) == pytest.approx(50 * 0.2)


def test_the_soonest_run_gives_the_least_deadline() -> None:
    quick = Soonest("small after step 0 of 50", 6.0, 2.0)
    with pytest.raises(
        LateError, match=r"6 s after acceptance \(small after step 0 of 50\); retry in 1\.0 s.*least 6$"
    ):
        check_in_time(REQUEST, 9.0, 12.0, quick)
    with pytest.raises(InvalidRequestError, match=r"at least 9 s, the predicted time of this request alone \(got"):
        check_in_time(REQUEST, 9.0, 12.0, replace(quick, finish_s=13.0, alone_s=10.0))


def test_a_request_that_idle_workers_would_finish_in_time_is_sent_again_later() -> None:
    with pytest.raises(LateError):
        check_in_time(REQUEST, 4.0, 12.0, Soonest("small after step 0 of 50", 6.0, 6.0))
    with pytest.raises(LateError, match=r"12 s after acceptance; retry"):
        check_in_time(REQUEST, 9.0, 12.0, Soonest("large after step 0 of 50", 12.0, 2.0))
