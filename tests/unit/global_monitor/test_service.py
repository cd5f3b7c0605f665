"""The monitor on the real in-process ports, watched over real gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import io
import urllib.request
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rich.console import Console

from protos import global_monitor_pb2 as pb
from protos.global_monitor_pb2_grpc import GlobalMonitorServiceStub
from services.cli.monitor import shown
from services.global_monitor.service import GlobalMonitorService
from shared.domain.errors import UnavailableError
from shared.domain.ids import new_id
from shared.domain.messages import JobQueued, Message, WorkerReported, WorkersAssigned, lane_of, refine_lane
from shared.domain.types import Job, JobState, Plan, PlanSource, Request, Size
from shared.runtime import telemetry
from shared.runtime.settings import Settings
from shared.service import Running, running

STEPS = (("large", 1, 0.02), ("small", 1, 0.005))
"""1 and 4 full generations a second."""


@dataclass
class House:
    """A running monitor, workers that are only facts, and what is said on the bus."""

    process: Running
    service: GlobalMonitorService
    stub: Any
    models: dict[str, str]
    said: list[WorkersAssigned] = field(default_factory=list)

    async def publish(self, fact: Message) -> None:
        await self.process.context.backends.bus.publish(fact)

    async def report(self) -> None:
        for name, model in self.models.items():
            await self.publish(WorkerReported(name, "gpu", model, 0, 8, STEPS))

    async def ask(self, hits: int, misses: int) -> None:
        for n in range(hits):
            await self.publish(JobQueued(f"h{n}", refine_lane(), "small", "image", start_step=25))
        for n in range(misses):
            await self.publish(JobQueued(f"m{n}", lane_of("large"), "large", "noise"))

    async def until(self, holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not holds():
                await self.report()
                await asyncio.sleep(0.02)

    async def answer(self) -> pb.AllocationResponse:
        call = self.stub.Allocation(pb.AllocationRequest(), timeout=10)
        answer: pb.AllocationResponse = await call.read()
        call.cancel()
        return answer

    async def page_with(self, line: str, port: int) -> str:
        """Return the metrics once they hold `line`; until then the workers report, or they would lapse."""
        async with asyncio.timeout(10):
            while line not in (page := await page_of(port)):
                await self.report()
                await asyncio.sleep(0.02)
        return page

    async def _hear(self, fact: Message) -> None:
        assert isinstance(fact, WorkersAssigned)
        self.said.append(fact)
        told = dict(fact.assignments)
        self.models = {name: told.get(name, model) for name, model in self.models.items()}  # they obey at once


@contextlib.asynccontextmanager
async def house(settings: Settings, workers: int = 2) -> AsyncIterator[House]:
    service = GlobalMonitorService()
    async with running([service], settings) as process, grpc.aio.insecure_channel(process.address) as channel:
        home = House(process, service, GlobalMonitorServiceStub(channel), {f"w{n}": "large" for n in range(workers)})
        await process.context.backends.bus.subscribe([WorkersAssigned], home._hear)
        await home.report()
        yield home


@pytest.fixture
def quick(settings: Settings) -> Settings:
    changes = {
        "large": "noop:?name=large",
        "small": "noop:?name=small",
        "monitor_mode": "throughput",
        "monitor_period_s": 0.3,
        "monitor_window_s": 60.0,
        "report_s": 0.1,
    }
    return Settings(**(settings.model_dump(exclude={"catalog_url", "blobs_url"}) | changes))


async def test_hits_turn_a_worker_into_a_small_one_and_everyone_may_watch(quick: Settings) -> None:
    with telemetry.serving_metrics("127.0.0.1:0") as port:
        async with house(quick) as home:
            first = await home.answer()
            assert (first.mode, first.why, first.leads) == (
                "throughput",
                "the demand is measured for one period first",
                True,
            )
            await home.ask(hits=8, misses=2)
            await home.until(lambda: sorted(home.models.values()) == ["large", "small"])
            answer = await home.answer()
            page = await home.page_with('afterimage_assigned_workers{model="small"} 1.0', port)
    assert sorted(one.model for one in answer.assignments) == ["large", "small"]
    assert {one.role for one in answer.assignments} == {"large", "small"}
    assert answer.hit_rate == pytest.approx(0.8)
    assert dict(answer.share_by_step) == pytest.approx({0: 0.2, 25: 0.8})
    assert answer.pid_output == pytest.approx(answer.target, abs=0.5)
    assert [dict(change.workers_by_model) for change in answer.history][-1] == {"large": 1, "small": 1}
    assert {lane.lane for lane in answer.lanes} == {"generate.large", "generate.refine"}
    for line in (
        'afterimage_monitor_mode{mode="throughput"} 1.0',
        'afterimage_monitor_demand{lane="generate.refine"}',
        'afterimage_monitor_pid{term="output"}',
        'afterimage_monitor_k_share{k="25"}',
    ):
        assert line in page
    assert '="w0"' not in page  # workers are no labels


async def test_the_page_is_as_live_as_the_terminal_between_two_decisions(quick: Settings) -> None:
    with telemetry.serving_metrics("127.0.0.1:0") as port:
        async with house(quick.model_copy(update={"monitor_period_s": 600.0})) as home:
            await home.until(lambda: bool(home.said))  # it has decided, and will not again
            await home.ask(hits=8, misses=2)
            page = await home.page_with("afterimage_monitor_hit_rate 0.8", port)
    assert 'afterimage_monitor_waiting{lane="generate.refine"} 4.0' in page  # eight halves
    assert 'afterimage_monitor_waiting{lane="generate.large"} 2.0' in page
    assert 'afterimage_monitor_k_share{k="25"} 0.8' in page


async def page_of(port: int) -> str:
    return await asyncio.to_thread(read, f"http://127.0.0.1:{port}/metrics")


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as page:
        return str(page.read().decode())


async def test_a_worker_that_missed_it_hears_it_again(quick: Settings) -> None:
    async with house(quick) as home:
        await home.ask(hits=8, misses=2)
        await home.until(lambda: "small" in home.models.values())
        before = len(home.said)
        await home.until(lambda: len(home.said) >= before + 3)
        assert {fact.assignments for fact in home.said[before:]} == {home.said[-1].assignments}


async def test_a_worker_that_dies_is_out_of_the_next_assignment(quick: Settings) -> None:
    async with house(quick, workers=3) as home:
        await home.until(lambda: bool(home.said) and len(home.said[-1].assignments) == 3)
        del home.models["w0"]
        await home.until(lambda: len(home.said[-1].assignments) == 2)
        home.models["w9"] = "large"
        await home.until(lambda: "w9" in dict(home.said[-1].assignments))


async def test_health_answers_and_the_stream_ends_when_it_drains(quick: Settings) -> None:
    async with house(quick) as home:
        async with grpc.aio.insecure_channel(home.process.address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            asked = health_pb2.HealthCheckRequest(service="afterimage.global_monitor.v1.GlobalMonitorService")
            assert (await health.Check(asked, timeout=5)).status == health_pb2.HealthCheckResponse.SERVING
        watching = asyncio.create_task(_watch(home))
        await asyncio.sleep(0.2)
        await home.service.drain()
        assert await asyncio.wait_for(watching, 5) >= 2


async def _watch(home: House) -> int:
    return len([answer async for answer in home.stub.Allocation(pb.AllocationRequest(), timeout=10)])


async def test_while_another_replica_leads_it_only_listens(quick: Settings) -> None:
    async with house(quick) as home:
        home.service._leads = False
        home.said.clear()
        await home.publish(WorkersAssigned((("w0", "large"), ("w1", "small"))))
        for _ in range(10):  # longer than a period
            await home.report()
            await asyncio.sleep(0.05)
        assert len(home.said) == 1
        answer = await home.answer()
        assert not answer.leads
        assert {one.worker: one.model for one in answer.assignments} == {"w0": "large", "w1": "small"}


async def test_the_terminal_shows_all_of_it(quick: Settings) -> None:
    async with house(quick) as home:
        await home.ask(hits=8, misses=2)
        await home.until(lambda: "small" in home.models.values())
        answer = await home.answer()
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(shown(answer))
    text = console.export_text()
    for part in ("mode throughput", "hit rate 80%", "PID output", "generate.refine", "w1", "1 large, 1 small"):
        assert part in text


async def test_work_that_names_a_model_nobody_runs_gets_the_only_worker_and_gives_it_back(quick: Settings) -> None:
    """The job is only a row: its fact was told before this monitor was there."""
    changed = quick.model_copy(update={"monitor_turn_s": 0.2, "monitor_mode": "quality"})
    async with house(changed, workers=1) as home:
        jobs = home.process.context.backends.catalog.jobs
        plan = Plan(PlanSource.NOISE, "small")
        request = Request("a red circle", Size(64, 64), 2, guidance=1.0, seed=1)
        job, _ = await jobs.accept(Job(new_id(), request, plan, JobState.QUEUED, lane=lane_of("small")))
        await home.until(lambda: home.models == {"w0": "small"})
        answer = await home.answer()
        assert "w0 runs small, whose lane had no worker" in answer.why
        assert [(one.worker, one.model, one.role) for one in answer.assignments] == [("w0", "small", "small")]
        assert [dict(change.workers_by_model) for change in answer.history][-1] == {"small": 1}
        await jobs.cancel(job.id)
        await home.until(lambda: home.models == {"w0": "large"})
        assert "had no worker" not in (await home.answer()).why


async def test_a_broker_that_is_away_is_said_once_and_is_no_bug(
    quick: Settings, monkeypatch: pytest.MonkeyPatch, logs: list[Any]
) -> None:
    tried: list[Message] = []
    async with house(quick) as home:
        await home.until(lambda: bool(home.said))
        bus = home.process.context.backends.bus
        publish = bus.publish

        async def away(fact: Message) -> None:
            if isinstance(fact, WorkersAssigned):
                tried.append(fact)
                raise UnavailableError("the broker does not answer")
            await publish(fact)

        monkeypatch.setattr(bus, "publish", away)
        await home.until(lambda: len(tried) >= 3)
        monkeypatch.setattr(bus, "publish", publish)
        before = len(home.said)
        await home.until(lambda: len(home.said) > before)
    own = [line for line in logs if line.get("service") == "global_monitor"]
    assert [line["event"] for line in own if line["log_level"] in ("warning", "error")] == ["assignment not published"]
