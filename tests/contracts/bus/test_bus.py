"""What every message queue does for the services."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from shared.bus import Bus, DeadLetter, Receiver
from shared.domain.errors import UnavailableError
from shared.domain.messages import KINDS, EntriesCached, GenerateImage, JobFailed, JobSucceeded, Message, Progress

SOON_S = 15.0
NOTHING_S = 0.1

DeadLetters = Callable[[], Awaitable[list[DeadLetter]]]


async def take(receiver: Receiver, count: int) -> list[str]:
    """The next job ids, acknowledged."""
    ids = []
    for _ in range(count):
        delivery = await asyncio.wait_for(receiver.get(), SOON_S)
        assert isinstance(delivery.message, GenerateImage)
        ids.append(delivery.message.job_id)
        await delivery.ack()
    return ids


async def nothing_for(receiver: Receiver) -> bool:
    try:
        await asyncio.wait_for(receiver.get(), NOTHING_S)
    except TimeoutError:
        return True
    return False


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(int(SOON_S / 0.002)):
        if condition():
            return
        await asyncio.sleep(0.002)
    pytest.fail("it did not happen in time")


class Heard:
    """A handler that keeps what it was told."""

    def __init__(self) -> None:
        self.facts: list[Message] = []

    async def __call__(self, fact: Message) -> None:
        self.facts.append(fact)


async def test_a_command_arrives_as_it_was_sent(bus: Bus, lane: str) -> None:
    receiver = await bus.receive([lane], prefetch=1)
    sent = GenerateImage("job-ü")
    await bus.send(lane, sent)
    delivery = await asyncio.wait_for(receiver.get(), SOON_S)
    assert delivery.message == sent
    assert delivery.message is not sent  # it was encoded, as it is on a wire
    assert not delivery.redelivered


async def test_a_lane_keeps_commands_until_someone_receives(bus: Bus, lane: str) -> None:
    for n in range(3):
        await bus.send(lane, GenerateImage(str(n)))
    assert await take(await bus.receive([lane], prefetch=3), 3) == ["0", "1", "2"]


async def test_priorities_from_five_overtake_where_the_bus_has_them(bus: Bus, lane: str) -> None:
    # two urgent ones only: RabbitMQ 4 serves a waiting task after every second urgent one, so that it never starves
    for n, priority in enumerate([0, 4, 5, 9, 1]):
        await bus.send(lane, GenerateImage(f"{priority}-{n}"), priority=priority)
    receiver = await bus.receive([lane], prefetch=1)
    in_order = ["0-0", "4-1", "5-2", "9-3", "1-4"]
    urgent_first = ["5-2", "9-3", "0-0", "4-1", "1-4"]
    assert await take(receiver, 5) == (urgent_first if bus.priorities else in_order)


async def test_earlier_lanes_go_first(bus: Bus, lane: str) -> None:
    await bus.send(f"{lane}.second", GenerateImage("second"))
    await bus.send(lane, GenerateImage("first"))
    assert await take(await bus.receive([lane, f"{lane}.second"], prefetch=1), 2) == ["first", "second"]


async def test_prefetch_bounds_what_is_in_hand(bus: Bus, lane: str) -> None:
    for n in range(3):
        await bus.send(lane, GenerateImage(str(n)))
    receiver = await bus.receive([lane], prefetch=2)
    first = await receiver.get()
    await receiver.get()
    assert await nothing_for(receiver)
    await first.ack()
    assert await take(receiver, 1) == ["2"]


async def test_a_waiting_receiver_is_woken(bus: Bus, lane: str) -> None:
    receiver = await bus.receive([lane], prefetch=1)
    waiting = asyncio.create_task(receiver.get())
    await asyncio.sleep(0.01)
    await bus.send(lane, GenerateImage("late"))
    assert (await asyncio.wait_for(waiting, SOON_S)).message == GenerateImage("late")


@pytest.mark.parametrize("lanes", [1, 2])
async def test_a_cancelled_get_loses_nothing(bus: Bus, lane: str, lanes: int) -> None:
    receiver = await bus.receive([lane, f"{lane}.second"][:lanes], prefetch=4)
    for n in range(20):
        waiting = asyncio.create_task(receiver.get())
        await asyncio.sleep(0)
        await bus.send(lane, GenerateImage(str(n)))
        if n % 2:
            await asyncio.sleep(0)
        waiting.cancel()
        got = await asyncio.gather(waiting, return_exceptions=True)
        if isinstance(got[0], BaseException):
            assert await take(receiver, 1) == [str(n)]
        else:
            assert got[0].message == GenerateImage(str(n))
            await got[0].ack()


@pytest.mark.parametrize("count", [1, 2])
async def test_two_receivers_share_their_lanes(bus: Bus, lane: str, count: int) -> None:
    lanes = [lane, f"{lane}.second"][:count]
    taken: list[list[str]] = [[], []]

    async def work(receiver: Receiver, mine: list[str]) -> None:
        while True:
            mine.extend(await take(receiver, 1))
            await asyncio.sleep(0.005)

    working = [asyncio.create_task(work(await bus.receive(lanes, prefetch=1), mine)) for mine in taken]
    for n in range(20):
        await bus.send(lanes[n % count], GenerateImage(str(n)))
    await until(lambda: sum(map(len, taken)) == 20)
    for task in working:
        task.cancel()
    await asyncio.gather(*working, return_exceptions=True)
    assert all(taken)
    assert sorted(int(job_id) for mine in taken for job_id in mine) == list(range(20))


async def test_prefetch_counts_over_all_lanes(bus: Bus, lane: str) -> None:
    second = f"{lane}.second"
    full = await bus.receive([lane, second], prefetch=2)
    waiting = asyncio.create_task(full.get())
    await asyncio.sleep(NOTHING_S)
    for n in range(2):  # it listens to both by now; it takes no more than two in all
        await bus.send(second, GenerateImage(f"second-{n}"))
        await bus.send(lane, GenerateImage(f"first-{n}"))
    held = [await asyncio.wait_for(waiting, SOON_S), await asyncio.wait_for(full.get(), SOON_S)]
    assert await nothing_for(full)
    rest = await take(await bus.receive([second, lane], prefetch=2), 2)
    ids = [delivery.message.job_id for delivery in held] + rest  # type: ignore[union-attr]
    assert sorted(ids) == ["first-0", "first-1", "second-0", "second-1"]


async def test_closing_a_receiver_returns_what_it_held(bus: Bus, lane: str) -> None:
    for n in range(3):
        await bus.send(lane, GenerateImage(str(n)))
    first = await bus.receive([lane], prefetch=2)
    held = [await first.get(), await first.get()]
    await first.close()
    await held[0].ack()  # too late: it is no longer ours
    second = await bus.receive([lane], prefetch=3)
    again = [await asyncio.wait_for(second.get(), SOON_S) for _ in range(3)]
    assert sorted(delivery.message.job_id for delivery in again) == ["0", "1", "2"]  # type: ignore[union-attr]
    assert {d.message.job_id: d.redelivered for d in again} == {"0": True, "1": True, "2": False}  # type: ignore[union-attr]


async def test_a_rejected_command_comes_back(bus: Bus, lane: str) -> None:
    receiver = await bus.receive([lane], prefetch=1)
    await bus.send(lane, GenerateImage("a"))
    await (await receiver.get()).reject()
    again = await asyncio.wait_for(receiver.get(), SOON_S)
    assert (again.message, again.redelivered) == (GenerateImage("a"), True)


async def test_a_delayed_command_comes_back_later(bus: Bus, lane: str) -> None:
    receiver = await bus.receive([lane], prefetch=1)
    await bus.send(lane, GenerateImage("slow"))
    await (await receiver.get()).reject(delay_s=0.3)
    await bus.send(lane, GenerateImage("quick"))
    assert await take(receiver, 1) == ["quick"]  # the delayed one holds no place meanwhile
    assert await nothing_for(receiver)
    assert await take(receiver, 1) == ["slow"]


async def test_a_buried_command_is_kept_aside(bus: Bus, lane: str, dead_letters: DeadLetters) -> None:
    receiver = await bus.receive([lane], prefetch=1)
    await bus.send(lane, GenerateImage("bad"))
    await (await receiver.get()).bury("three errors")
    assert await nothing_for(receiver)
    (letter,) = await dead_letters()
    assert (letter.lane, letter.message, letter.reason) == (lane, GenerateImage("bad"), "three errors")
    assert abs(letter.at - time.time()) < 60


async def test_a_dead_letter_can_be_sent_again(bus: Bus, lane: str, dead_letters: DeadLetters) -> None:
    receiver = await bus.receive([lane], prefetch=1)
    for name in ("first", "second"):
        await bus.send(lane, GenerateImage(name))
        await (await asyncio.wait_for(receiver.get(), SOON_S)).bury("no GPU today")
    first, second = await dead_letters()
    assert [letter.message for letter in (first, second)] == [GenerateImage("first"), GenerateImage("second")]
    assert await dead_letters() == [first, second]  # looking changes nothing
    assert await bus.replay([second.id, "another"]) == 1
    assert await dead_letters() == [first]
    again = await asyncio.wait_for(receiver.get(), SOON_S)
    assert (again.message, again.redelivered) == (GenerateImage("second"), False)
    await again.ack()
    assert await bus.replay([second.id]) == 0


async def test_a_command_that_always_comes_back_is_buried(bus: Bus, lane: str, dead_letters: DeadLetters) -> None:
    receiver = await bus.receive([lane], prefetch=1)
    await bus.send(lane, GenerateImage("poison"))
    rejected = 0
    while rejected < 45 or not await dead_letters():
        delivery = await asyncio.wait_for(receiver.get(), SOON_S)
        assert delivery.message == GenerateImage("poison")
        await delivery.reject()
        rejected += 1
        assert rejected <= 100
    assert rejected >= 50
    (letter,) = await dead_letters()
    assert letter.returns >= 50
    assert await nothing_for(receiver)


async def test_a_command_that_nothing_is_wrong_with_may_come_back_for_ever(
    bus: Bus, lane: str, dead_letters: DeadLetters
) -> None:
    receiver = await bus.receive([lane], prefetch=1)
    await bus.send(lane, GenerateImage("patient"))
    for _ in range(120):
        delivery = await asyncio.wait_for(receiver.get(), SOON_S)
        assert delivery.message == GenerateImage("patient")
        await delivery.reject(counts=False)
    assert await dead_letters() == []


@dataclass(frozen=True)
class PaintFresco:
    """A command that only another version of Afterimage knows."""

    job_id: str


async def test_a_command_of_another_version_waits_in_its_lane(
    bus: Bus, lane: str, dead_letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("shared.bus.inprocess", "shared.bus.rabbitmq.receiving"):
        monkeypatch.setattr(f"{module}.UNKNOWN_AGAIN_S", 0.2)
    receiver = await bus.receive([lane], prefetch=1)
    strange: Any = PaintFresco("fresco")
    await bus.send(lane, strange)
    await bus.send(lane, GenerateImage("known"))
    assert await take(receiver, 1) == ["known"]  # it holds up nothing
    assert await nothing_for(receiver)
    monkeypatch.setitem(KINDS, "PaintFresco", PaintFresco)  # the other version runs
    fresco = await asyncio.wait_for(receiver.get(), SOON_S)
    assert fresco.message == strange
    await fresco.ack()
    assert await dead_letters() == []


async def test_a_malformed_command_of_a_known_kind_is_buried_at_once(
    bus: Bus, lane: str, dead_letters: DeadLetters
) -> None:
    @dataclass(frozen=True)
    class Malformed:
        job_id: list[int]

    Malformed.__name__ = "GenerateImage"
    receiver = await bus.receive([lane], prefetch=1)
    malformed: Any = Malformed([1])
    await bus.send(lane, malformed)
    await bus.send(lane, GenerateImage("known"))
    assert await take(receiver, 1) == ["known"]
    async with asyncio.timeout(SOON_S):
        while not (letters := await dead_letters()):
            await asyncio.sleep(0.02)
    (letter,) = letters
    assert (letter.kind, letter.body) == ("GenerateImage", '{"job_id":[1]}')
    assert letter.reason.startswith("not understood: ")
    assert "job_id" in letter.reason


async def test_an_event_of_another_version_is_ignored_at_once(
    bus: Bus, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, strange = Heard(), PaintFresco("fresco")
    monkeypatch.setattr("shared.bus.handling.RETRY_AFTER_S", (SOON_S,))  # a retry would be noticed
    monkeypatch.setattr("shared.bus.handling._unknown", set())
    events: Any = [strange, strange, JobSucceeded("a", 1)]
    await bus.subscribe([*{type(event) for event in events}], heard)
    for event in events:
        await bus.publish(event)
    await until(lambda: heard.facts == [JobSucceeded("a", 1)])
    said = capsys.readouterr()
    assert (said.out + said.err).count("event_ignored") == 1


async def test_a_settled_delivery_stays_settled(bus: Bus, lane: str) -> None:
    receiver = await bus.receive([lane], prefetch=1)
    await bus.send(lane, GenerateImage("a"))
    delivery = await receiver.get()
    await delivery.ack()
    await delivery.reject()
    assert await nothing_for(receiver)


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
    assert "fact_dropped" in said.out + said.err


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


async def test_closing_the_bus_ends_whoever_waits(bus: Bus, lane: str) -> None:
    receiver = await bus.receive([lane], prefetch=1)
    waiting = asyncio.create_task(receiver.get())
    await asyncio.sleep(0.01)
    await bus.close()
    with pytest.raises(UnavailableError):
        await asyncio.wait_for(waiting, SOON_S)
    with pytest.raises(UnavailableError):
        await bus.send(lane, GenerateImage("a"))
