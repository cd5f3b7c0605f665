"""Facts wake whoever waits; the row has the last word."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from services.gateway import fanout
from services.gateway.console import live
from services.gateway.fanout import Fanout
from shared.bus.inprocess import InProcessBus
from shared.domain.errors import OverloadedError, UnavailableError
from shared.domain.messages import JobFailed, JobSucceeded, Progress
from shared.domain.types import Job, JobState, Plan, PlanSource, Request, Size

JOB = Job(
    "j1",
    Request(prompt="a fox", size=Size(64, 64), steps=10, guidance=2.0, seed=1),
    Plan(PlanSource.NOISE, "large"),
    JobState.RUNNING,
)


class Rows:
    def __init__(self) -> None:
        self.job = JOB
        self.reads = 0

    async def get(self, job_id: str) -> Job:
        assert job_id == self.job.id
        self.reads += 1
        return self.job


async def everything(house: Fanout, rows: Rows) -> list[Progress | Job]:
    with house.watch("j1") as watch:
        return [event async for event in house.follow(watch, rows)]


async def test_progress_then_the_final_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "POLL_S", 60.0)
    bus, rows, ended = InProcessBus(), Rows(), list[str]()
    house = Fanout(bus, ended.append)
    await house.start()
    waiting = asyncio.create_task(everything(house, rows))
    await asyncio.sleep(0)
    for step in (1, 2):
        await bus.publish(Progress("j1", step, 10))
    await bus.publish(JobSucceeded("another", 1))
    rows.job = replace(JOB, state=JobState.SUCCEEDED)
    await bus.publish(JobSucceeded("j1", 1))
    events = await asyncio.wait_for(waiting, 5)
    await house.stop()
    await bus.close()

    assert [event.step for event in events[:-1] if isinstance(event, Progress)] == [1, 2]
    assert events[-1] == rows.job
    assert rows.reads == 1
    assert ended == ["another", "j1"]
    assert house.step(JOB) == 2


async def test_a_failed_attempt_is_not_the_end_and_a_lost_fact_is_found_by_polling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fanout, "POLL_S", 0.05)
    bus, rows = InProcessBus(), Rows()
    house = Fanout(bus, lambda _: None)
    await house.start()
    waiting = asyncio.create_task(everything(house, rows))
    await asyncio.sleep(0)
    rows.job = replace(JOB, state=JobState.QUEUED)
    await bus.publish(JobFailed("j1", 1, "cuda sneezed"))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    rows.job = replace(JOB, state=JobState.CANCELLED)  # and nobody says so
    events = await asyncio.wait_for(waiting, 5)
    await house.stop()
    await bus.close()
    assert events[-1] == rows.job


async def test_a_gateway_that_stops_tells_who_waits_for_a_job_that_went_back() -> None:
    bus, rows = InProcessBus(), Rows()
    house = Fanout(bus, lambda _: None)
    await house.start()
    waiting = asyncio.create_task(everything(house, rows))
    await asyncio.sleep(0)
    house.drain()
    await asyncio.sleep(0.05)
    assert not waiting.done()  # it still runs, and may finish
    rows.job = replace(JOB, state=JobState.QUEUED)
    with pytest.raises(UnavailableError, match="j1"):
        await asyncio.wait_for(waiting, 5)
    await house.stop()
    await bus.close()


async def test_nothing_is_remembered_of_those_who_left() -> None:
    house = Fanout(InProcessBus(), lambda _: None)
    with house.watch("j1") as first, house.watch("j1") as second:
        assert house.waited_for("j1", besides=first)
        house.redirect(second, "j2")
        assert not house.waited_for("j1", besides=first)
        assert house.waited_for("j2", besides=first)
    assert not house._watches


async def test_while_draining_it_does_not_wait_for_a_worker_of_another_process() -> None:
    bus = InProcessBus()
    bus.process_local = False  # as a broker
    rows, house = Rows(), Fanout(bus, lambda _: None)
    await house.start()
    waiting = asyncio.create_task(everything(house, rows))
    await asyncio.sleep(0)
    house.drain()
    with pytest.raises(UnavailableError, match="j1 goes on"):
        await asyncio.wait_for(waiting, 5)
    await house.stop()
    await bus.close()


async def test_the_news_of_a_success_comes_before_its_row_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "POLL_S", 60.0)
    bus, order = InProcessBus(), list[object]()

    class Slow(Rows):
        async def get(self, job_id: str) -> Job:
            order.append("row")
            return await super().get(job_id)

    rows, house = Slow(), Fanout(bus, lambda _: None)
    rows.job = replace(JOB, state=JobState.SUCCEEDED)
    await house.start()
    fact = JobSucceeded("j1", 1, picture_key="pictures/j1-1.png", picture_sha256="0" * 64)
    with house.watch("j1") as watch:
        await bus.publish(fact)
        events = [event async for event in house.follow(watch, rows, order.append)]
    await house.stop()
    await bus.close()
    assert order == [fact, "row"]
    assert events == [rows.job]


async def test_few_calls_wait_for_one_job() -> None:
    house = Fanout(InProcessBus(), lambda _: None)
    with contextlib.ExitStack() as held:
        for number in range(fanout.MOST_WATCHES):
            house.redirect(held.enter_context(house.watch(f"retry {number}")), "j1")
        last = held.enter_context(house.watch("one too many"))
        with pytest.raises(OverloadedError, match="32 calls wait for job j1 here"):
            house.redirect(last, "j1")
        house.redirect(last, "j2")


async def test_a_tab_that_reads_nothing_is_told_to_read_its_lists_again() -> None:
    tab = live.Tab(lambda _tenant, _user: True, operator=False)
    for number in range(live.MOST_EVENTS + 5):
        tab.put("job", f"j{number}", {"id": number})
    events = await tab.next(0.0)
    assert events[0] == ("reload", {})
    assert [event["id"] for _, event in events[1:]] == list(range(live.MOST_EVENTS, live.MOST_EVENTS + 5))


async def test_a_tab_that_a_cancel_scope_ends_leaves_nothing() -> None:
    """Starlette streams in such a scope, which cancels every await of the tab's task, also while the tab closes."""
    bus = InProcessBus()
    context: Any = SimpleNamespace(backends=SimpleNamespace(bus=bus))
    calls: Any = SimpleNamespace(fanout=Fanout(bus, lambda _: None))
    tabs = live.Live(context, calls)
    with anyio.CancelScope() as scope:
        async with tabs.tab(lambda _tenant, _user: True, operator=False):
            rows = tabs._tasks["rows"]
            scope.cancel()
            await asyncio.sleep(5.0)
    async with asyncio.timeout(5.0):
        while bus._subscriptions or not rows.done():
            await asyncio.sleep(0)
    assert (tabs._subscription, tabs._tasks) == (None, {})
    await bus.close()
