"""Two models behind one door: the monitor hears demand, a worker changes its model, and what was asked for is drawn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import grpc
import pytest
from typer.testing import CliRunner

from protos import global_monitor_pb2 as pb
from protos.global_monitor_pb2_grpc import GlobalMonitorServiceStub
from services.cli.app import app
from services.cli.embedded import announced
from services.gateway.service import GatewayService
from services.gpu_worker.families import Family
from services.gpu_worker.families.noop import NoopFamily
from services.gpu_worker.models.residency import Resident
from shared.domain.errors import ModelError, UnavailableError
from shared.domain.ids import new_id
from shared.domain.messages import GenerateImage, JobQueued, WorkerReported, WorkersAssigned, lane_of, refine_lane
from shared.domain.types import Job, JobState, Plan, PlanSource, Request, Size
from shared.runtime.settings import Settings
from tests.flows.conftest import Make
from tests.flows.house import House, house
from tests.flows.reuse.test_two_models import seen

BUNDLED = {"large": "bundled:large", "small": "bundled:small"}


@pytest.fixture
def two(make: Make) -> Callable[..., Settings]:
    """Two workers, two models, and a monitor that decides after half a second."""

    def made(**changes: object) -> Settings:
        quick = {"workers": 2, "max_rows": 2, "report_s": 0.1, "monitor_period_s": 0.5, "monitor_window_s": 60.0}
        return make(**({**BUNDLED, "monitor_mode": "throughput"} | quick | changes))

    return made


async def allocation(it: House) -> pb.AllocationResponse:
    async with grpc.aio.insecure_channel(it.process.context.internal_address) as channel:
        call = GlobalMonitorServiceStub(channel).Allocation(pb.AllocationRequest(), timeout=10)
        answer: pb.AllocationResponse = await call.read()
        call.cancel()
        return answer


async def until(it: House, holds: Callable[[pb.AllocationResponse], bool]) -> pb.AllocationResponse:
    async with asyncio.timeout(20):
        while not holds(answer := await allocation(it)):
            await asyncio.sleep(0.05)
    return answer


def run_by(answer: pb.AllocationResponse) -> list[str]:
    return sorted(one.running for one in answer.assignments)


async def hits(it: House, count: int) -> None:
    """Demand as the gateway tells it: image hits and a miss, drawn elsewhere."""
    for n in range(count):
        await it.backends.bus.publish(JobQueued(f"hit {n}", refine_lane(), "small", "image", start_step=10))
    await it.backends.bus.publish(JobQueued("miss", lane_of("large"), "large", "noise"))


async def in_lane(it: House, lane: str, model: str, steps: int = 2) -> Job:
    """A job that waits in this lane."""
    request = Request("a red circle", Size(64, 64), steps, guidance=1.0, seed=1)
    plan = Plan(PlanSource.NOISE, model)
    job = Job(new_id(), request, plan, JobState.QUEUED, lane=lane)
    kept, _ = await it.backends.catalog.jobs.accept(job)
    await it.backends.bus.send(lane, GenerateImage(kept.id))
    return kept


async def drawn(it: House, job: Job) -> str:
    """The model that drew it."""
    async with asyncio.timeout(20):
        while not (row := await it.backends.catalog.jobs.get(job.id)).state.final:
            await asyncio.sleep(0.02)
    assert row.result is not None, row.error
    return str(row.result.model)


async def test_the_bundled_models_share_two_workers_as_the_demand_wants(two: Callable[..., Settings]) -> None:
    """A miss, then pictures that start from it: the hits that the gateway tells of turn one of two workers small."""
    async with house(two(encoder="bundled:clip", capture_steps=(), image_k_table_alpha=0.9)) as it:
        before = await until(it, lambda answer: len(answer.assignments) == 2)
        assert run_by(before) == ["large", "large"]
        assert all(one.rate > 0 for one in before.assignments)
        miss = await seen(it, await it.generate("a red fox in the snow", seed=1))
        hits = [await it.generate("a fox in the snow at night", seed=seed) for seed in (2, 3)]
        assert {hit.plan.source for hit in hits} == {PlanSource.IMAGE}
        after = await until(it, lambda answer: run_by(answer) == ["large", "small"])
        assert (after.mode, after.small_model) == ("throughput", "small")
        assert after.hit_rate == pytest.approx(2 / 3)
        hit = await it.generate("a fox in the snow at night", seed=4)
        assert (hit.plan.source, hit.model) == (PlanSource.IMAGE, "small")
        named = await it.client.generate("a fox in the snow at night", steps=2, seed=4, quality="large")
        assert (miss.model, named.model) == ("large", "large")
        named = await it.client.generate("a red circle", steps=2, quality="small", cache="off")
        assert named.model == "small"


async def test_the_last_assignment_stands_without_a_monitor(two: Callable[..., Settings]) -> None:
    small = "noop:?name=small&step_ms=1"
    async with house(two(large="noop:?name=large&step_ms=4", small=small)) as it:
        await hits(it, 20)
        await until(it, lambda answer: run_by(answer) == ["large", "small"])
        monitor = next(one for one in it.process.services if one.name == "global_monitor")
        await monitor.drain()
        assert await drawn(it, await in_lane(it, lane_of("small"), "small")) == "small"
        assert await drawn(it, await in_lane(it, lane_of("large"), "large")) == "large"


async def test_one_worker_serves_every_lane_of_both_models(two: Callable[..., Settings]) -> None:
    small = "noop:?name=small&step_ms=1"
    async with house(two(large="noop:?name=large&step_ms=4", small=small, workers=1)) as it:
        await hits(it, 20)
        answer = await until(it, lambda answer: answer.why.startswith("the only worker"))
        assert run_by(answer) == ["large"]
        assert await drawn(it, await in_lane(it, lane_of("small"), "small")) == "small"


async def test_a_stepped_down_fleet_strands_nothing(two: Callable[..., Settings]) -> None:
    """Full lanes, then every worker but one becomes small, and then all are large again."""
    small = "noop:?name=small&step_ms=1"
    settings = two(large="noop:?name=large&step_ms=4", small=small, workers=3, monitor_period_s=600.0)
    async with house(settings, without=["global_monitor"]) as it:
        names = [one.worker for one in it.process.services if one.name == "gpu_worker"]  # type: ignore[attr-defined]
        jobs = [await in_lane(it, lane_of("large"), "large", steps=10) for _ in range(20)]
        jobs += [await in_lane(it, lane_of("small"), "small", steps=10) for _ in range(5)]
        down = dict.fromkeys(names, "small") | {names[0]: "large"}
        for models in (down, dict.fromkeys(names, "large")):
            await it.backends.bus.publish(WorkersAssigned(tuple(models.items()), "throughput"))
            await asyncio.sleep(0.15)
        assert [await drawn(it, job) for job in jobs] == ["large"] * 20 + ["small"] * 5
        rows = [await it.backends.catalog.jobs.get(job.id) for job in jobs]
        assert {(row.attempt, row.crashes, row.failures) for row in rows} == {(1, 0, 0)}


@pytest.mark.parametrize("mode", ["quality", "throughput"])
async def test_a_worker_alone_that_holds_one_model_at_a_time_serves_both(
    two: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(NoopFamily, "memory_bytes", 60)
    small = "noop:?name=small&step_ms=1"
    changes = {"workers": 1, "resident_bytes": 100, "monitor_turn_s": 0.3, "monitor_mode": mode}
    async with house(two(large="noop:?name=large&step_ms=1", small=small, **changes)) as it:
        names = ["small", "large"] * 4
        async with asyncio.timeout(60):
            drawing = (it.client.generate(f"a circle, {n}", steps=4, quality=name) for n, name in enumerate(names))
            pictures = await asyncio.gather(*drawing)
        assert [picture.model for picture in pictures] == names
        await until(it, lambda answer: run_by(answer) == ["large"])


async def test_a_model_that_no_worker_could_load_is_refused_instead_of_waited_for(
    two: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Resident.get

    async def broken(self: Resident, name: str) -> Family:
        if name == "small":
            raise ModelError("no room for it")
        return await real(self, name)

    monkeypatch.setattr(Resident, "get", broken)
    async with house(two(large="noop:?name=large&step_ms=1", small="noop:?name=small&step_ms=1")) as it:
        await until(it, lambda answer: len(answer.assignments) == 2)
        gateway = next(one for one in it.process.services if isinstance(one, GatewayService))
        async with asyncio.timeout(20):
            while not gateway._roster.unable(it.process.context.clock.monotonic()):
                await asyncio.sleep(0.02)
        with pytest.raises(UnavailableError, match="'small': no worker could load it") as refused:
            await it.client.generate("a circle", steps=2, quality="small")
        assert refused.value.retry_after_s == 30.0
        assert (await it.client.list_jobs())[0] == []
        assert (await it.client.generate("a circle", steps=2)).model == "large"


async def test_a_clip_is_refused_where_one_worker_has_no_video_model_and_the_other_cannot_load_it(
    two: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Resident.get

    async def broken(self: Resident, name: str) -> Family:
        if name == "clips":
            raise ModelError("no room for it")
        return await real(self, name)

    monkeypatch.setattr(Resident, "get", broken)
    models = {"large": "noop:?name=large&step_ms=1", "video": "noop:?name=clips&frames=4", "workers": 1}
    async with house(two(**models)) as it:
        gateway = next(one for one in it.process.services if isinstance(one, GatewayService))
        async with asyncio.timeout(20):
            while not gateway._roster.unable(it.process.context.clock.monotonic()):
                await it.backends.bus.publish(WorkerReported("other", "cpu", "large", 0, 2, serves=("large",)))
                await asyncio.sleep(0.02)
            with pytest.raises(UnavailableError, match="'clips': no worker could load it, or has it in its settings"):
                await it.client.generate_video("a circle", steps=2)
            assert (await it.client.list_jobs())[0] == []
            assert (await it.client.generate("a circle", steps=2)).model == "large"


@contextlib.asynccontextmanager
async def announced_house(settings: Settings) -> AsyncIterator[House]:
    async with house(settings) as it:
        with announced(it.process, settings):
            yield it


async def test_the_command_shows_it(two: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = two(large="noop:?name=large&step_ms=4", small="noop:?name=small&step_ms=1")
    async with announced_house(settings) as it:
        await until(it, lambda answer: len(answer.assignments) == 2)
        asked = ["monitor", "--once", "--data-dir", str(settings.data_dir)]
        result = await asyncio.to_thread(CliRunner().invoke, app, asked)
    assert result.exit_code == 0, result.output
    assert "global monitor" in result.output
    assert "2 of 2" in result.output
