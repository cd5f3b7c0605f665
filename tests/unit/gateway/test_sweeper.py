"""What a crash left unsent is sent again, from a real catalog to a real bus."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.gateway.sweeper import Confirmer, Sweeper
from shared.bus.inprocess import InProcessBus
from shared.catalog import open_catalog
from shared.catalog.jobs.sweeping import NEVER_S
from shared.domain.errors import ConfigurationError, UnavailableError
from shared.domain.messages import GenerateImage
from shared.domain.types import Job, JobState, Plan, PlanSource, Request, Size
from shared.runtime.clock import ManualClock

REQUEST = Request(prompt="a fox", size=Size(64, 64), steps=10, guidance=2.0, seed=1)


def job(name: str) -> Job:
    return Job(name, REQUEST, Plan(PlanSource.NOISE, "large"), JobState.QUEUED, lane="generate.large")


async def test_unconfirmed_jobs_are_sent_again_and_confirmed_ones_are_not(tmp_path: Path) -> None:
    catalog, bus = await open_catalog(f"sqlite+aiosqlite:///{tmp_path}/c.sqlite3"), InProcessBus()
    armed: list[str] = []
    sweeper = Sweeper(catalog, bus, 0.0, lambda job: armed.append(job.id))
    confirmer = Confirmer(catalog, every_s=0.0)
    for name in ("sent", "lost"):
        await catalog.jobs.accept(job(name), key_lifetime_s=60.0)
    await confirmer.confirm(["sent"])
    await confirmer.close()

    assert await sweeper.sweep() == 1
    receiver = await bus.receive(["generate.large"], prefetch=4)
    assert (await receiver.get()).message == GenerateImage("lost")
    assert await sweeper.sweep() == 0
    assert armed == ["lost"]
    assert await sweeper.recover() == 2  # a new process: the old one's queue is gone
    await receiver.close()
    await bus.close()
    await catalog.close()


async def test_a_task_that_a_broker_buried_behind_its_rows_back_is_sent_again(tmp_path: Path) -> None:
    catalog, bus = await open_catalog(f"sqlite+aiosqlite:///{tmp_path}/c.sqlite3"), InProcessBus()
    await catalog.jobs.accept(job("buried"), key_lifetime_s=60.0)
    await catalog.jobs.confirm(["buried"])
    await asyncio.sleep(0.05)
    own = Sweeper(catalog, bus, 60.0, lambda _: None, resend_s=0.01)
    assert await own.sweep() == 0  # a bus of this process loses nothing
    bus.process_local = False  # as a broker
    assert await Sweeper(catalog, bus, 60.0, lambda _: None, resend_s=0.01).sweep() == 1
    assert await Sweeper(catalog, bus, 60.0, lambda _: None, resend_s=60.0).sweep() == 0
    await bus.close()
    await catalog.close()


async def test_what_could_not_be_sent_again_is_tried_at_the_next_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when the time to resend is over again."""
    catalog, bus = await open_catalog(f"sqlite+aiosqlite:///{tmp_path}/c.sqlite3"), InProcessBus()
    bus.process_local = False  # as a broker
    names = ("first", "second")
    for name in names:
        await catalog.jobs.accept(job(name), key_lifetime_s=60.0)
    await catalog.jobs.confirm(names)
    send, sent = bus.send, list[str]()

    async def goes_away(lane: str, message: GenerateImage, *, priority: int = 0) -> None:
        if sent:
            raise UnavailableError("the broker is away")
        sent.append(message.job_id)
        await send(lane, message, priority=priority)

    with monkeypatch.context() as away:
        away.setattr(bus, "send", goes_away)
        with pytest.raises(UnavailableError):
            await Sweeper(catalog, bus, NEVER_S, lambda _: None, resend_s=-1.0).sweep()  # both wait long enough
    assert sent == ["first"]
    sweeper = Sweeper(catalog, bus, -1.0, lambda _: None, resend_s=NEVER_S)
    assert await sweeper.sweep() == 1  # the second; the first was confirmed
    await bus.close()
    await catalog.close()


async def test_a_lane_that_is_refused_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, bus = await open_catalog(f"sqlite+aiosqlite:///{tmp_path}/c.sqlite3"), InProcessBus()
    for name, lane in (("1", "generate.small"), ("2", "generate.large"), ("3", "generate.small")):
        await catalog.jobs.accept(replace(job(name), lane=lane), key_lifetime_s=60.0)
    send, tried = bus.send, list[str]()

    async def refused(lane: str, message: GenerateImage, *, priority: int = 0) -> None:
        tried.append(message.job_id)
        if lane == "generate.small":
            raise ConfigurationError("bus_url: exists with other arguments")
        await send(lane, message, priority=priority)

    sweeper = Sweeper(catalog, bus, -1.0, lambda _: None)
    with monkeypatch.context() as misconfigured:
        misconfigured.setattr(bus, "send", refused)
        with pytest.raises(ConfigurationError, match="bus_url"):
            await sweeper.sweep()
    assert tried == ["1", "2"]
    assert (await catalog.jobs.get("2")).confirmed
    assert await sweeper.sweep() == 2
    await bus.close()
    await catalog.close()


@pytest.mark.parametrize("broken", ["reroute", "sweep"])
async def test_neither_resending_nor_rerouting_waits_for_the_other(tmp_path: Path, broken: str) -> None:
    catalog, bus = await open_catalog(f"sqlite+aiosqlite:///{tmp_path}/c.sqlite3"), InProcessBus()
    requeued, rerouted = list[str](), asyncio.Event()

    async def reroute() -> None:
        rerouted.set()
        if broken == "reroute":
            raise UnavailableError("the database is away")

    def again(job: Job) -> None:
        requeued.append(job.id)
        if broken == "sweep":
            raise ZeroDivisionError("a bug")

    await catalog.jobs.accept(job("lost"), key_lifetime_s=60.0)
    await asyncio.sleep(0.02)
    sweeping = asyncio.create_task(Sweeper(catalog, bus, 0.01, again, reroute=reroute).run())
    async with asyncio.timeout(5):
        await rerouted.wait()
        while not requeued:
            await asyncio.sleep(0.01)
    sweeping.cancel()
    await asyncio.wait([sweeping])
    await bus.close()
    await catalog.close()


async def test_a_catalog_that_is_away_is_no_bug_and_a_bug_has_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: list[Any]
) -> None:
    catalog, bus = await open_catalog(f"sqlite+aiosqlite:///{tmp_path}/c.sqlite3"), InProcessBus()
    for error, level, event in (
        (UnavailableError("the catalog is away"), "warning", "sweep put off"),
        (ZeroDivisionError("a bug"), "error", "sweep failed"),
    ):

        async def fails(*_: object, error: Exception = error, **__: object) -> int:
            raise error

        monkeypatch.setattr(catalog.jobs, "to_requeue", fails)
        logs.clear()
        sweeping = asyncio.create_task(Sweeper(catalog, bus, 0.01, lambda _: None).run())
        async with asyncio.timeout(10):
            while not logs:
                await asyncio.sleep(0.01)
        sweeping.cancel()
        await asyncio.wait([sweeping])
        assert {(one["log_level"], one["event"]) for one in logs} == {(level, event)}
        assert (logs[0].get("exc_info") is error) == (level == "error")
    await bus.close()
    await catalog.close()


class Wall(ManualClock):
    """Goes on while the machine sleeps; the monotonic one does not."""

    def monotonic(self) -> float:
        return 0.0


async def test_after_a_suspend_workers_renew_before_leases_count_as_run_out(tmp_path: Path) -> None:
    wall = Wall()
    catalog, bus = await open_catalog(f"sqlite+aiosqlite:///{tmp_path}/c.sqlite3", clock=wall), InProcessBus()
    requeued: list[str] = []
    sweeper = Sweeper(catalog, bus, 0.05, lambda job: requeued.append(job.id), lease_s=0.5, clock=wall)
    for name in ("renewed", "dead"):
        await catalog.jobs.accept(job(name), key_lifetime_s=60.0)
        assert await catalog.jobs.claim(name, "w1", 60.0)
    sweeping = asyncio.create_task(sweeper.run())
    await asyncio.sleep(0)
    wall.advance(3600.0)
    await asyncio.sleep(0.2)  # several sweeps
    assert await catalog.jobs.renew("renewed", 1, 60.0)  # a worker wakes later than the sweeper
    async with asyncio.timeout(10):
        while "dead" not in requeued:
            await asyncio.sleep(0.02)
    sweeping.cancel()
    await asyncio.wait([sweeping])

    kept = await catalog.jobs.get("renewed")
    assert (kept.state, kept.attempt, kept.crashes) == (JobState.RUNNING, 1, 0)
    assert requeued == ["dead"]  # whoever does not renew is dead all the same
    assert (await catalog.jobs.get("dead")).crashes == 1
    await bus.close()
    await catalog.close()


async def test_after_an_outage_of_the_catalog_workers_renew_before_leases_count_as_run_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, bus = await open_catalog(f"sqlite+aiosqlite:///{tmp_path}/c.sqlite3"), InProcessBus()
    requeued: list[str] = []
    sweeper = Sweeper(catalog, bus, 0.02, lambda job: requeued.append(job.id), lease_s=0.5)
    for name in ("renewed", "dead"):
        await catalog.jobs.accept(job(name), key_lifetime_s=60.0)
        assert await catalog.jobs.claim(name, "w1", -1.0)  # it ran out meanwhile
    asked = asyncio.Event()

    async def away() -> None:
        asked.set()
        raise UnavailableError("the catalog is away")

    with monkeypatch.context() as outage:
        outage.setattr(catalog, "ping", away)
        sweeping = asyncio.create_task(sweeper.run())
        await asyncio.wait_for(asked.wait(), 10)
    await asyncio.sleep(0.1)  # it is back, and several sweeps are due
    assert await catalog.jobs.renew("renewed", 1, 60.0)
    async with asyncio.timeout(10):
        while "dead" not in requeued:
            await asyncio.sleep(0.02)
    sweeping.cancel()
    await asyncio.wait([sweeping])
    assert requeued == ["dead"]
    kept = await catalog.jobs.get("renewed")
    assert (kept.state, kept.attempt, kept.crashes) == (JobState.RUNNING, 1, 0)
    await bus.close()
    await catalog.close()
