"""Which workers report, and how jobs move when no worker runs their model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.gateway import rerouting
from services.gateway.rerouting import reroute
from services.gateway.roster import Roster
from shared.domain.messages import GenerateImage, WorkerReported
from shared.domain.types import Job, JobState, ModelPlan, Plan, PlanSource, Request, Size, Source
from shared.runtime.settings import Settings
from shared.service.backends import open_backends

REQUEST = Request("a fox", Size(64, 64), 50, 2.5, 7)
IMAGE = Plan(
    PlanSource.IMAGE, "small", 10, sources=(Source("e", "p"),), may_run=(ModelPlan("small", 10), ModelPlan("large", 5)),
    miss_model="large",
)  # fmt: skip
LATENT = Plan(
    PlanSource.LATENT, "large", 20, sources=(Source("e", "s"),), reason="near.", fallback=replace(IMAGE, reason="seen.")
)
PAIR = ("large", "small")


def test_the_worker_with_the_most_memory_limits_a_request() -> None:
    roster = Roster(5.0)
    roster.reported(replace(report("w1", "large"), pixels=(("large", 100), ("clips", 7))), at=0.0)
    roster.reported(replace(report("w2", "large"), pixels=(("large", 300),), cannot=("clips",)), at=1.0)
    assert [roster.pixel_limit(name, 2.0) for name in ("large", "clips")] == [0, 0]  # others may not have reported yet
    assert [roster.pixel_limit(name, 6.0) for name in ("large", "clips", "other")] == [300, 7, 0]
    roster.reported(report("w3", "large"), at=6.0)  # it knows no limit
    assert roster.pixel_limit("large", 6.0) == 0


def test_workers_are_known_by_their_reports_and_gone_after_three_silences() -> None:
    roster = Roster(report_s=5.0)
    assert roster.models(0.0) is None
    roster.reported(WorkerReported("w1", "cpu", "large", 0, 8), at=0.0)
    roster.reported(WorkerReported("w2", "cpu", "small", 0, 8), at=10.0)
    assert roster.models(15.0) == frozenset({"large", "small"})
    assert roster.models(16.0) == frozenset({"small"})
    roster.reported(WorkerReported("w2", "cpu", "small", 0, 8, leaving=True), at=17.0)
    assert roster.models(17.0) is None


def report(worker: str, model: str) -> WorkerReported:
    return WorkerReported(worker, "cpu", model, 0, 8)


def test_who_reports_first_does_not_speak_for_all() -> None:
    roster = Roster(report_s=5.0)
    roster.reported(report("w2", "small"), at=100.0)  # a gateway that starts
    assert roster.models(100.0) is roster.models(104.9) is None
    roster.reported(report("w1", "large"), at=104.9)
    assert roster.models(105.0) == frozenset({"large", "small"})


def test_a_bus_that_was_away_leaves_no_partial_knowledge() -> None:
    roster = Roster(report_s=5.0)
    for at in (0.0, 5.0, 10.0):
        roster.reported(report("w1", "large"), at=at)
        roster.reported(report("w2", "small"), at=at + 4.0)
    assert roster.models(24.0) == frozenset({"large", "small"})
    assert roster.models(25.5) is None  # w1 is silent for longer than three reports, but so is everybody for two
    roster.reported(report("w2", "small"), at=26.0)
    assert roster.models(26.0) is None
    roster.reported(report("w1", "large"), at=29.0)
    assert roster.models(31.0) == frozenset({"large", "small"})
    roster.reported(report("w2", "small"), at=31.0)
    for at in (36.0, 41.0, 46.0):
        roster.reported(report("w2", "small"), at=at)
    assert roster.models(46.0) == frozenset({"small"})  # w1 alone is silent: it is gone


def test_a_model_that_every_worker_failed_to_load_is_known_as_such() -> None:
    roster = Roster(report_s=5.0, models=("large", "small", "tiny"))
    assert roster.unable(0.0) == frozenset()
    roster.reported(replace(report("w1", "large"), cannot=("small", "tiny")), at=0.0)
    assert roster.unable(0.1) == frozenset()  # others may be there
    roster.reported(replace(report("w2", "large"), cannot=("small",)), at=5.0)
    assert roster.unable(5.0) == {"small"}
    roster.reported(report("w2", "large"), at=10.0)  # restarted, and it could
    assert roster.unable(10.0) == frozenset()
    roster.reported(replace(report("w1", "large"), cannot=("small", "tiny")), at=10.0)
    assert roster.unable(20.1) == frozenset()  # silent


def test_a_worker_without_the_model_in_its_settings_cannot_run_it() -> None:
    roster = Roster(report_s=5.0, models=("large", "clips"))
    for at in (0.0, 5.0):
        roster.reported(replace(report("w1", "large"), serves=("large", "clips"), cannot=("clips",)), at=at)
        roster.reported(replace(report("w2", "large"), serves=("large",)), at=at)
    assert roster.unable(5.0) == {"clips"}
    roster.reported(report("w3", "large"), at=5.0)  # an older worker may have it
    assert roster.unable(5.0) == frozenset()


def test_a_lane_without_an_assigned_worker_is_consumed_where_its_model_is_loaded() -> None:
    roster = Roster(report_s=5.0, models=("large", "small"))
    able = replace(report("w1", "large"), serves=("large", "small"))
    for at in (0.0, 5.0):
        roster.reported(able, at=at)
    assert roster.unable(5.0) == frozenset()
    assert roster.unconsumed(5.0) == {"small"}
    assert roster.unconsumed(30.0) == frozenset()  # silent: unknown
    roster.reported(report("w1", "large"), at=31.0)
    roster.reported(replace(able, step_s=(("small", 1, 0.1),)), at=36.0)
    assert roster.unconsumed(36.0) == frozenset()


@pytest.mark.parametrize("leaving", [True, False])
def test_a_model_whose_worker_restarts_is_not_refused(leaving: bool) -> None:
    roster = Roster(report_s=5.0, models=("large", "clips"))
    other, video = replace(report("w1", "large"), serves=("large",)), replace(report("w2", "clips"), serves=("clips",))
    for at in (0.0, 5.0):
        roster.reported(other, at=at)
        roster.reported(video, at=at)
    if leaving:
        roster.reported(replace(video, leaving=True), at=6.0)
    for at in range(10, 306, 5):
        roster.reported(other, at=float(at))
        assert roster.unable(float(at)) == frozenset()
    roster.reported(other, at=310.0)
    assert roster.unable(310.0) == {"clips"}  # it did not come back
    roster.reported(video, at=311.0)
    roster.reported(replace(video, cannot=("clips",), leaving=True), at=312.0)
    assert roster.unable(312.0) == {"clips"}  # it could not load the model


def test_workers_that_are_gone_are_forgotten() -> None:
    roster = Roster(report_s=5.0)
    for pid in range(100):  # each crashes and is followed by the next
        roster.reported(report(f"host-{pid}", "large"), at=5.0 * pid)
    assert len(roster._heard) == 4  # of the last three reports' time


async def test_what_waits_for_a_model_that_nobody_runs_moves_to_refine(settings: Settings) -> None:
    backends = await open_backends(settings)
    jobs, bus = backends.catalog.jobs, backends.bus
    try:
        for name, plan in (("hit", LATENT), ("miss", Plan(PlanSource.NOISE, "large"))):
            job = Job(name, REQUEST, plan, JobState.QUEUED, lane="generate.large")
            await jobs.accept(job)
        assert await reroute(backends.catalog, bus, PAIR, None) == 0
        assert await reroute(backends.catalog, bus, PAIR, frozenset(PAIR)) == 0
        assert await reroute(backends.catalog, bus, PAIR, frozenset({"small"})) == 1
        moved = await jobs.get("hit")
        assert (moved.lane, moved.plan.source, moved.confirmed) == ("generate.refine", PlanSource.IMAGE, True)
        assert (await jobs.get("miss")).lane == "generate.large"  # only the large model draws it
        receiver = await bus.receive(["generate.refine"], prefetch=1)
        assert (await receiver.get()).message == GenerateImage("hit", "p")
        await receiver.close()
        assert await reroute(backends.catalog, bus, PAIR, frozenset({"small"})) == 0
    finally:
        await backends.close()


async def test_hits_of_an_earlier_start_wait_for_no_model_that_is_served_no_more(settings: Settings) -> None:
    """`up --small …` was killed with a full queue; `up` without a small model goes on with it."""
    backends = await open_backends(settings)
    jobs, alone = backends.catalog.jobs, replace(IMAGE, may_run=IMAGE.may_run[:1])
    try:
        waiting = {
            "both": (IMAGE, "generate.refine"),
            "alone": (alone, "generate.refine"),
            "moved": (alone, "generate.small"),
        }
        for name, (plan, lane) in waiting.items():
            await jobs.accept(Job(name, REQUEST, plan, JobState.QUEUED, lane=lane))
        assert await reroute(backends.catalog, backends.bus, ("large",), frozenset({"large"})) == 3
        found = {name: await jobs.get(name) for name in waiting}
        assert {job.lane for job in found.values()} == {"generate.large"}
        assert {name: job.plan.source for name, job in found.items()} == {
            "both": PlanSource.IMAGE, "alone": PlanSource.NOISE, "moved": PlanSource.NOISE,
        }  # fmt: skip
        assert (found["both"].plan.model, found["both"].plan.start_step) == ("large", IMAGE.may_run[1].start_step)
        assert await reroute(backends.catalog, backends.bus, ("large",), frozenset({"large"})) == 0
    finally:
        await backends.close()


async def test_a_picture_that_nobody_may_go_on_from_is_a_miss_and_goes_round_no_more(settings: Settings) -> None:
    """Large workers take hits too in quality mode, and pass on those that only the small model may refine."""
    backends = await open_backends(settings)
    jobs, alone = backends.catalog.jobs, replace(IMAGE, may_run=IMAGE.may_run[:1])
    own = replace(IMAGE, model="large", start_step=5, may_run=IMAGE.may_run[1:])
    named = replace(REQUEST, quality="small")
    try:
        for name, request, plan in (("passed on", REQUEST, alone), ("named", named, alone), ("both", REQUEST, IMAGE)):
            await jobs.accept(Job(name, request, plan, JobState.QUEUED, lane="generate.small"))
        assert await reroute(backends.catalog, backends.bus, PAIR, frozenset(PAIR)) == 0
        assert await reroute(backends.catalog, backends.bus, PAIR, frozenset({"large"})) == 2
        missed = await jobs.get("passed on")
        assert (missed.lane, missed.plan.source, missed.plan.model) == ("generate.large", PlanSource.NOISE, "large")
        assert missed.plan.degraded == ("workers: no worker runs small; generated from noise",)
        assert (await jobs.get("both")).lane == "generate.refine"  # which the large one refines
        assert (await jobs.get("named")).lane == "generate.small"
        assert await reroute(backends.catalog, backends.bus, PAIR, frozenset({"large"})) == 0
        assert await reroute(backends.catalog, backends.bus, PAIR, frozenset({"small"})) == 0
        # as a miss it would wait for the large model as well, and for more steps
        await jobs.accept(Job("the large one's", REQUEST, own, JobState.QUEUED, lane="generate.large"))
        assert await reroute(backends.catalog, backends.bus, PAIR, frozenset({"small"})) == 0
        assert (await jobs.get("the large one's")).lane == "generate.large"
    finally:
        await backends.close()


async def test_what_cannot_move_hides_nothing_that_waits_behind_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rerouting, "AT_A_TIME", 2)
    backends = await open_backends(settings)
    try:
        miss = Plan(PlanSource.NOISE, "large")
        for number, plan in enumerate((miss, miss, miss, LATENT, miss, LATENT)):
            job = Job(f"job{number}", REQUEST, plan, JobState.QUEUED, lane="generate.large")
            await backends.catalog.jobs.accept(job)
        assert await reroute(backends.catalog, backends.bus, PAIR, frozenset({"small"})) == 2
        moved = await backends.catalog.jobs.waiting("generate.refine")
        assert [job.id for job in moved] == ["job3", "job5"]
    finally:
        await backends.close()
