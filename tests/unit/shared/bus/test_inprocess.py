"""What the bus inside one process does when a subscriber does not keep up."""

from __future__ import annotations

import asyncio

import pytest

from shared.bus.inprocess import InProcessBus, subscriptions
from shared.domain.messages import JobSucceeded, Message


async def test_who_is_too_far_behind_loses_the_oldest_facts_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "BACKLOG", 3)
    bus = InProcessBus()
    told: list[str] = []
    busy, go_on = asyncio.Event(), asyncio.Event()

    async def handler(fact: Message) -> None:
        assert isinstance(fact, JobSucceeded)
        told.append(fact.job_id)
        busy.set()
        await go_on.wait()

    async def gap() -> None:
        told.append("gap")

    await bus.subscribe([JobSucceeded], handler, on_gap=gap)
    await bus.publish(JobSucceeded("0", 1))
    await busy.wait()
    for n in range(1, 6):
        await bus.publish(JobSucceeded(str(n), 1))
    go_on.set()
    async with asyncio.timeout(5.0):
        while told[-1] != "5":
            await asyncio.sleep(0)
    assert told == ["0", "gap", "3", "4", "5"]
    await bus.close()
