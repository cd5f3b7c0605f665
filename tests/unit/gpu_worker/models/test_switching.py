"""A worker follows the monitor: it drains, changes its model, says so, and strands nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
import torch

from protos import gpu_worker_pb2 as pb
from services.gpu_worker import service
from services.gpu_worker.engine.layout_choice import LayoutChoice
from services.gpu_worker.families import Family
from services.gpu_worker.families.noop import NoopFamily
from services.gpu_worker.models.measuring import load_warm
from services.gpu_worker.models.residency import Resident
from shared.domain.errors import ModelError
from shared.domain.messages import GenerateImage, Message, WorkerReported, WorkersAssigned, lane_of, refine_lane
from shared.domain.types import Job, JobState, Plan, PlanSource
from shared.models import ModelCard, served_cards
from shared.runtime.settings import Settings
from tests.unit.gpu_worker.worker import WorkerBench, running_worker

LARGE, SMALL = "noop:?name=large&step_ms=5", "noop:?name=small&step_ms=1"
Reports = list[WorkerReported]


@contextlib.asynccontextmanager
async def two_models(
    folder: Path, *, report_s: float = 1.0, **changes: object
) -> AsyncIterator[tuple[WorkerBench, Reports]]:
    """A worker that serves two models and reports quickly, and what it reports."""
    async with running_worker(folder, LARGE, small=SMALL, report_s=report_s, **changes) as bench:
        reports: Reports = []

        async def heard(fact: Message) -> None:
            assert isinstance(fact, WorkerReported)
            reports.append(fact)

        await bench.backends.bus.subscribe([WorkerReported], heard)
        yield bench, reports


async def assign(bench: WorkerBench, model: str, *others: str, mode: str = "quality") -> None:
    named = tuple((f"other {at}", other) for at, other in enumerate(others))
    await bench.backends.bus.publish(WorkersAssigned(((bench.service.worker, model), *named), mode))


async def runs(reports: Reports, model: str) -> WorkerReported:
    """The first report that says so."""
    async with asyncio.timeout(10):
        while not (found := [report for report in reports if report.model == model]):
            await asyncio.sleep(0.005)
    return found[0]


async def queued(bench: WorkerBench, model: str, lane: str = "", steps: int = 10) -> Job:
    job = await bench.accept(Plan(PlanSource.NOISE, model), steps=steps)
    await bench.backends.bus.send(lane or lane_of(model), GenerateImage(job.id))
    return job


def drawn_with(job: Job) -> str:
    assert job.result is not None, job.error
    return job.result.model


async def test_the_first_steps_of_a_model_are_reported_at_once(tmp_path: Path) -> None:
    async with two_models(tmp_path, report_s=60.0) as (bench, reports):
        bench.service._assignment.step_s.clear()  # what was measured when the models were loaded
        await queued(bench, "large")
        async with asyncio.timeout(10):
            while not any(one.step_s for one in reports):
                await asyncio.sleep(0.005)


async def test_it_reports_what_it_measured_and_follows_an_assignment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"small": 7, "large": 9}  # a model that waits has none
    monkeypatch.setattr(service, "pixel_limits", lambda *_, to_start: limits)
    async with two_models(tmp_path) as (bench, reports):
        first = await runs(reports, "large")
        assert first.pixels == (("large", 9), ("small", 7))
        assert bench.service._thread._engine._max_pixels == 7  # all models share the memory
        assert {(model, rows) for model, rows, _ in first.step_s} == {
            (model, rows) for model in ("large", "small") for rows in (1, first.max_rows)
        }
        seconds = {(model, rows): s for model, rows, s in first.step_s}
        assert seconds["large", 1] > 0.004 > seconds["small", 1]
        assert first.kind.startswith("cpu")
        await assign(bench, "small", "large")
        await runs(reports, "small")
        job = await queued(bench, "small")
        assert drawn_with(await bench.final(job.id)) == "small"
        described = await bench.service.Describe(pb.DescribeRequest(), None)
        assert [model.model for model in described.models] == ["large", "small"]  # both stay


async def test_models_load_with_the_choices_of_their_layouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choices, given = {"large": LayoutChoice()}, []

    async def choices_of(settings: Settings, profiles: object, cards: Iterable[ModelCard]) -> dict[str, LayoutChoice]:
        assert [card.name for card in cards] == ["large", "small"]
        return choices

    def load(card: ModelCard, settings: Settings, choices: dict[str, LayoutChoice]) -> Family:
        given.append(choices)
        return load_warm(card, settings, choices)

    monkeypatch.setattr(service, "choices_of", choices_of)
    monkeypatch.setattr(service, "load_warm", load)
    async with two_models(tmp_path):
        assert given
        assert all(each is choices for each in given)


async def test_a_switch_with_full_lanes_strands_nothing(tmp_path: Path) -> None:
    """Step down with twice as much waiting as fits, and one more worker that stays large."""
    async with two_models(tmp_path, max_rows=2) as (bench, reports):
        waiting = [await queued(bench, "large", steps=20) for _ in range(6)]
        named = [await queued(bench, "small") for _ in range(3)]
        await bench.until(lambda job: job.state is JobState.RUNNING, waiting[0].id)
        await assign(bench, "small", "large")
        await runs(reports, "small")
        done = [await bench.jobs.get(job.id) for job in waiting]
        finished = [job for job in done if job.state is JobState.SUCCEEDED]
        assert 0 < len(finished) < len(waiting)  # what ran was finished, and no more was begun
        assert {job.state for job in done} == {JobState.SUCCEEDED, JobState.QUEUED}
        assert [drawn_with(await bench.final(job.id)) for job in named] == ["small"] * 3
        await assign(bench, "large", "small")
        rest = [await bench.final(job.id) for job in waiting]
        assert {drawn_with(job) for job in rest} == {"large"}
        assert {(job.attempt, job.crashes, job.failures) for job in rest} == {(1, 0, 0)}


async def test_lanes_of_models_that_nobody_runs_are_taken_too(tmp_path: Path) -> None:
    async with two_models(tmp_path) as (bench, _):
        job = await queued(bench, "small")  # nothing was ever assigned
        assert drawn_with(await bench.final(job.id)) == "small"
        await assign(bench, "small")
        job = await queued(bench, "large")
        assert drawn_with(await bench.final(job.id)) == "large"


async def test_lanes_change_with_the_mode_without_a_drain(tmp_path: Path) -> None:
    async with two_models(tmp_path) as (bench, _):
        slow = await queued(bench, "large", steps=100)  # half a second
        await bench.until(lambda job: job.state is JobState.RUNNING, slow.id)
        await assign(bench, "large", "small", mode="throughput")
        async with asyncio.timeout(5):
            while bench.service._tasks.lanes.lanes != (lane_of("large"),):
                await asyncio.sleep(0.005)
        quick = await queued(bench, "large", steps=2)
        assert (await bench.final(quick.id)).state is JobState.SUCCEEDED
        assert (await bench.jobs.get(slow.id)).state is JobState.RUNNING
        assert (await bench.final(slow.id)).attempt == 1


async def test_when_the_monitor_is_away_the_last_assignment_stands(tmp_path: Path) -> None:
    async with two_models(tmp_path, report_s=0.05) as (bench, reports):
        await assign(bench, "small", "large")
        await runs(reports, "small")
        count = len(reports)
        await asyncio.sleep(0.3)  # six reports, and nobody answers
        assert len(reports) > count
        assert {report.model for report in reports[count:]} == {"small"}


async def takes_from(bench: WorkerBench, *lanes: str) -> None:
    async with asyncio.timeout(10):
        while bench.service._tasks.lanes.lanes != lanes:
            await asyncio.sleep(0.005)


async def test_hits_are_not_stranded_when_the_monitor_dies_with_the_last_small_worker(tmp_path: Path) -> None:
    async with two_models(tmp_path, report_s=0.1) as (bench, _):
        large, refine = lane_of("large"), refine_lane()
        for _ in range(8):  # said again and again, it holds for longer than three reports
            await assign(bench, "large", "small", mode="throughput")
            await takes_from(bench, large)
            await asyncio.sleep(0.05)
        job = await queued(bench, "large", lane=refine)
        assert (await bench.final(job.id)).state is JobState.SUCCEEDED
        assert bench.service._tasks.lanes.lanes == (large, refine, lane_of("small"))
        await assign(bench, "large", "small", mode="throughput")
        await takes_from(bench, large)


async def test_a_model_that_cannot_be_loaded_is_reported_and_the_old_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Resident.get

    async def broken(self: Resident, name: str) -> Family:
        if name == "small":
            raise ModelError("no room for it")
        return await real(self, name)

    monkeypatch.setattr(Resident, "get", broken)
    async with two_models(tmp_path) as (bench, reports):
        first = await runs(reports, "large")
        assert first.cannot == ("small",)
        await assign(bench, "small", "large")
        job = await queued(bench, "large")
        assert drawn_with(await bench.final(job.id)) == "large"
        assert {report.model for report in reports} == {"large"}


async def test_the_last_word_is_that_it_leaves(tmp_path: Path) -> None:
    async with two_models(tmp_path) as (bench, reports):
        await runs(reports, "large")
        await bench.service.drain(0.1)
        async with asyncio.timeout(5):
            while not reports[-1].leaving:
                await asyncio.sleep(0.005)


async def test_a_switch_where_only_one_model_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NoopFamily, "memory_bytes", 60)
    async with two_models(tmp_path, resident_bytes=100) as (bench, reports):
        assert list(bench.service._models.families) == ["large"]
        slow = await queued(bench, "large", steps=20)
        await bench.until(lambda job: job.state is JobState.RUNNING, slow.id)
        await assign(bench, "small", "large")
        await runs(reports, "small")
        assert list(bench.service._models.families) == ["small"]
        assert drawn_with(await bench.jobs.get(slow.id)) == "large"
        assert drawn_with(await bench.final((await queued(bench, "small")).id)) == "small"


# ---- what stays loaded


class Sized(NoopFamily):
    memory_bytes = 50


def resident(settings: Settings, limit: int) -> Resident:
    def load(card: ModelCard) -> Family:
        return Sized(card, torch.device("cpu"), 0.0, 0.0)

    small = "noop:?name=b, noop:?name=c"
    cards = served_cards(settings.model_copy(update={"large": "noop:?name=a", "small": small}))
    return Resident(cards, load, limit_bytes=limit)


async def test_without_a_limit_everything_stays(settings: Settings) -> None:
    models = resident(settings, 0)
    for name in ("a", "b", "c", "a"):
        assert models.fits(name)
        await models.get(name)
    assert list(models.families) == ["b", "c", "a"]


async def test_whoever_was_used_longest_ago_makes_room(settings: Settings) -> None:
    models = resident(settings, 100)
    for name in ("a", "b"):  # whose size nobody knows is loaded alone
        await models.get(name)
    assert list(models.families) == ["b"]
    await models.get("a")
    assert list(models.families) == ["b", "a"]
    await models.get("b")
    await models.get("c")
    await models.get("b")
    assert list(models.families) == ["c", "b"]
    assert not models.fits("a")
    await models.get("a")
    assert list(models.families) == ["b", "a"]
