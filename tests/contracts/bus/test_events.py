"""Events reach their subscribers, in order and one at a time."""

from __future__ import annotations

import asyncio

import pytest

from shared.bus import Bus
from shared.domain.messages import EntriesCached, JobFailed, JobSucceeded, Message, Progress
from tests.contracts.bus.conftest import SOON_S, Heard, until


async def test_every_subscriber_hears_the_kinds_it_asked_for(bus: Bus) -> None:
    both, one = Heard(), Heard()
    await bus.subscribe([JobSucceeded, JobFailed], both)
    await bus.subscribe([JobFailed], one)
    facts: list[Message] = [JobSucceeded("a", 1), JobFailed("b", 2, "out of memory"), EntriesCached(("e",))]
    for fact in facts:
        await bus.publish(fact)
    await until(lambda: len(both.facts) == 2 and len(one.facts) == 1)
    assert (both.facts, one.facts) == (facts[:2], facts[1:2])


async def test_facts_come_in_order_and_one_at_a_time(bus: Bus) -> None:
    running, seen = 0, []

    async def handler(fact: Message) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0.001)
        running -= 1
        assert isinstance(fact, Progress)
        seen.append(fact.step)

    await bus.subscribe([Progress], handler)
    for step in range(20):
        await bus.publish(Progress("a", step, 20))
    await until(lambda: len(seen) == 20)
    assert seen == list(range(20))


async def test_subscribers_of_one_name_share_the_facts(bus: Bus, lane: str) -> None:
    heard = [Heard(), Heard()]
    for handler in heard:
        await bus.subscribe([JobSucceeded], handler, queue=lane)
    for n in range(20):
        await bus.publish(JobSucceeded(str(n), 1))
        await asyncio.sleep(0.001)
    await until(lambda: sum(len(handler.facts) for handler in heard) >= 20)
    everything = [fact.job_id for handler in heard for fact in handler.facts if isinstance(fact, JobSucceeded)]
    assert sorted(map(int, everything)) == list(range(20))


async def test_a_named_queue_waits_for_its_subscriber(bus: Bus, lane: str) -> None:
    before, after = Heard(), Heard()
    subscription = await bus.subscribe([JobSucceeded], before, queue=lane)
    await subscription.close()
    await bus.publish(JobSucceeded("meanwhile", 1))
    await bus.subscribe([JobSucceeded], after, queue=lane)
    await until(lambda: after.facts == [JobSucceeded("meanwhile", 1)])
    assert before.facts == []


async def test_without_a_name_one_hears_only_while_listening(bus: Bus) -> None:
    heard, later = Heard(), Heard()
    subscription = await bus.subscribe([JobSucceeded], heard)
    await bus.publish(JobSucceeded("a", 1))
    await until(lambda: len(heard.facts) == 1)
    await subscription.close()
    await bus.publish(JobSucceeded("b", 1))
    await bus.subscribe([JobSucceeded], later)
    await bus.publish(JobSucceeded("c", 1))
    await until(lambda: len(later.facts) == 1)
    assert (heard.facts, later.facts) == ([JobSucceeded("a", 1)], [JobSucceeded("c", 1)])


async def test_a_failing_handler_is_tried_again_then_the_fact_dropped(
    bus: Bus, capsys: pytest.CaptureFixture[str]
) -> None:
    tries: list[str] = []

    async def handler(fact: Message) -> None:
        assert isinstance(fact, JobSucceeded)
        tries.append(fact.job_id)
        if fact.job_id == "bad" or (fact.job_id == "once" and tries.count("once") == 1):
            raise ValueError("no")

    await bus.subscribe([JobSucceeded], handler)
    for job_id in ("once", "bad", "good"):
        await bus.publish(JobSucceeded(job_id, 1))
    await until(lambda: tries[-1:] == ["good"])
    assert tries == ["once"] * 2 + ["bad"] * 4 + ["good"]
    said = capsys.readouterr()
    assert "event_dropped" in said.out + said.err


async def test_closing_a_subscription_lets_the_running_handler_finish(bus: Bus) -> None:
    started, finished = asyncio.Event(), False

    async def handler(_fact: Message) -> None:
        nonlocal finished
        started.set()
        await asyncio.sleep(0.05)
        finished = True

    subscription = await bus.subscribe([JobSucceeded], handler)
    await bus.publish(JobSucceeded("a", 1))
    await asyncio.wait_for(started.wait(), SOON_S)
    await subscription.close()
    assert finished


async def test_a_handler_may_close_its_own_subscription(bus: Bus) -> None:
    heard = Heard()

    async def handler(fact: Message) -> None:
        await heard(fact)
        await subscription.close()

    subscription = await bus.subscribe([JobSucceeded], handler)
    await bus.publish(JobSucceeded("a", 1))
    await bus.publish(JobSucceeded("b", 1))
    await until(lambda: len(heard.facts) == 1)
    await asyncio.sleep(0.02)
    assert heard.facts == [JobSucceeded("a", 1)]


async def test_nobody_hears_of_a_gap_that_was_not(bus: Bus) -> None:
    heard, gaps = Heard(), 0

    async def gap() -> None:
        nonlocal gaps
        gaps += 1

    await bus.subscribe([JobSucceeded], heard, on_gap=gap)
    await bus.publish(JobSucceeded("a", 1))
    await until(lambda: len(heard.facts) == 1)
    assert gaps == 0
