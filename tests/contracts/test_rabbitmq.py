"""What only a bus with a broker of its own must do: outlive it, refuse what it cannot carry, and mend what was lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import pytest

from shared.bus import trace
from shared.bus.rabbitmq import RabbitBus, facts, publisher, queues
from shared.bus.rabbitmq.link import HEARTBEAT_S, REFUSALS, Link
from shared.bus.rabbitmq.publisher import MAX_BODY
from shared.bus.rabbitmq.queues import RETURNS_BACKSTOP, delay_of
from shared.errors import ConfigurationError, InvalidRequestError, UnavailableError
from shared.ids import new_id
from shared.messages import EntriesCached, GenerateImage, JobSucceeded, Progress
from tests.contracts.servers import server_of, url_of
from tests.contracts.test_bus import SOON_S, Heard, nothing_for, take, until

SETTLE_S = publisher.SETTLE_S
BACK_S = 60.0
"""A broker that was killed is back within this; seconds on a quiet machine."""


@pytest.fixture
async def bus() -> AsyncIterator[RabbitBus]:
    opened = await RabbitBus(url_of("rabbitmq"), wait_s=10.0).open()
    yield opened
    await opened.close()


@contextlib.asynccontextmanager
async def channel() -> AsyncIterator[aio_pika.abc.AbstractChannel]:
    """Behind the adapter's back."""
    connection = await aio_pika.connect(url_of("rabbitmq"))
    async with connection:
        yield await connection.channel()


# ---- the broker dies and comes back ----


@pytest.mark.parametrize("ending", ["kill", "stop"])
async def test_everything_comes_back_after_the_broker_did(lane: str, ending: str) -> None:
    server = server_of("rabbitmq")
    bus = await RabbitBus(server.url, wait_s=0.5).open()
    gaps: list[int] = []
    everyone, shared = Heard(), Heard()

    async def on_gap() -> None:
        gaps.append(len(everyone.facts))

    await bus.subscribe([JobSucceeded, Progress], everyone, on_gap=on_gap)
    await bus.subscribe([JobSucceeded], shared, queue=lane)
    receiver = await bus.receive([lane], prefetch=2)
    several = await bus.receive([f"{lane}.first", f"{lane}.second"], prefetch=2)
    for n in range(3):
        await bus.send(lane, GenerateImage(str(n)))
    await bus.send(f"{lane}.second", GenerateImage("several"))
    await bus.publish(JobSucceeded("before", 1))
    held = await asyncio.wait_for(receiver.get(), SOON_S)
    held_of_several = await asyncio.wait_for(several.get(), SOON_S)
    await until(lambda: len(everyone.facts) == len(shared.facts) == 1)
    await asyncio.sleep(SETTLE_S)

    await asyncio.to_thread(getattr(server, ending))
    with pytest.raises(UnavailableError) as refused:
        await bus.send(lane, GenerateImage("while it is away"))
    assert refused.value.retry_after_s
    refusals = (
        bus.publish(JobSucceeded("while it is away", 1)),
        bus.subscribe([Progress], everyone),
        bus.receive([lane], prefetch=1),
        bus.dead_letters(),
    )
    for call in refusals:
        with pytest.raises(UnavailableError):
            await call
    await asyncio.wait_for(bus.publish(Progress("a", 1, 2)), 0.1)  # dropped, not waited for
    await held.reject(delay_s=5.0)  # the broker has it back already
    waiting = asyncio.create_task(several.get())
    await asyncio.to_thread(server.start)

    await held_of_several.ack()  # void: its channel is gone
    assert (await asyncio.wait_for(waiting, BACK_S)).message == GenerateImage("several")
    assert sorted(await take(receiver, 3)) == ["0", "1", "2"]
    async with asyncio.timeout(BACK_S):
        while not gaps:
            await asyncio.sleep(0.05)
    assert gaps == [1]  # told after what came before, and before what came after
    await until_sent(bus, JobSucceeded("after", 1))
    await until(lambda: everyone.facts[-1:] == shared.facts[-1:] == [JobSucceeded("after", 1)])
    await bus.send(lane, GenerateImage("after"))
    assert await take(receiver, 1) == ["after"]
    await bus.close()


async def until_sent(bus: RabbitBus, fact: JobSucceeded) -> None:
    async with asyncio.timeout(BACK_S):
        while True:
            try:
                return await bus.publish(fact)
            except UnavailableError:
                await asyncio.sleep(0.1)


async def test_what_was_sent_is_there_after_a_crash_and_who_was_refused_knows_it(
    lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = server_of("rabbitmq")
    bus = await RabbitBus(server.url, wait_s=0.3).open()
    patient = await RabbitBus(server.url, wait_s=BACK_S).open()
    accepted: set[str] = set()
    stop = asyncio.Event()

    async def sender() -> None:
        n = 0
        while not stop.is_set():
            with contextlib.suppress(UnavailableError):
                await bus.send(lane, GenerateImage(str(n)))
                accepted.add(str(n))
            n += 1
            await asyncio.sleep(0.002)

    receiver = await bus.receive([lane], prefetch=1)
    taken: set[str] = set()

    async def worker() -> None:
        while True:
            delivery = await receiver.get()
            taken.add(delivery.message.job_id)  # type: ignore[union-attr]
            await delivery.ack()
            await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(sender()), asyncio.create_task(worker())]
    await until(lambda: len(taken) >= 20)
    monkeypatch.setattr(publisher, "SETTLE_S", SETTLE_S)
    await patient.send(f"{lane}.new", GenerateImage("into a new lane"))
    await asyncio.to_thread(server.kill)
    waiting = asyncio.create_task(patient.send(lane, GenerateImage("patient")))
    before = set(accepted)
    await asyncio.to_thread(server.start)
    await asyncio.wait_for(waiting, BACK_S)
    async with asyncio.timeout(BACK_S):
        while len(accepted - before) < 20:
            await asyncio.sleep(0.05)
    stop.set()
    assert await take(await patient.receive([f"{lane}.new"], prefetch=1), 1) == ["into a new lane"]
    async with asyncio.timeout(BACK_S):
        while not accepted | {"patient"} <= taken:
            await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await bus.close()
    await patient.close()


async def test_a_broker_that_is_not_there_is_named_without_the_password() -> None:
    bus = RabbitBus("amqp://someone:secret@127.0.0.1:1/")
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1 does not answer") as refused:
        await bus.open(within_s=0.3)
    assert "secret" not in str(refused.value)


async def test_a_wrong_password_is_said_at_once() -> None:
    url = url_of("rabbitmq").replace("guest:guest", "guest:wrong")
    with pytest.raises(ConfigurationError, match=r"bus_url: .*refuses this user or password"):
        await asyncio.wait_for(RabbitBus(url).open(), SOON_S)


async def test_a_running_bus_that_is_refused_waits_as_for_one_that_is_away(bus: RabbitBus, lane: str) -> None:
    """Somebody restores the broker's users, or has changed the password: the service goes on trying."""
    await bus.send(lane, GenerateImage("before"))
    link = bus._links[0]
    good, link._url = link._url, link._url.with_password("wrong")
    assert link._connection is not None
    await link._connection.close()
    async with asyncio.timeout(SOON_S):
        while link._refusals < REFUSALS:
            await asyncio.sleep(0.02)
    bus._publisher._wait_s = 0.5
    with pytest.raises(UnavailableError, match="does not answer") as refused:
        await bus.send(lane, GenerateImage("meanwhile"))
    assert refused.value.retry_after_s
    link._url, bus._publisher._wait_s = good, 10.0
    await bus.send(lane, GenerateImage("after"))
    assert await take(await bus.receive([lane], prefetch=2), 2) == ["before", "after"]


# ---- facts ----


async def test_who_is_too_far_behind_is_told_and_goes_on_with_what_is_new(
    bus: RabbitBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "BACKLOG", 3)
    monkeypatch.setattr(facts, "PREFETCH", 1)
    told: list[str] = []
    busy, go_on = asyncio.Event(), asyncio.Event()

    async def handler(fact: object) -> None:
        assert isinstance(fact, JobSucceeded)
        told.append(fact.job_id)
        busy.set()
        await go_on.wait()

    async def gap() -> None:
        told.append("gap")

    await bus.subscribe([JobSucceeded], handler, on_gap=gap)
    await bus.publish(JobSucceeded("0", 1))
    await asyncio.wait_for(busy.wait(), SOON_S)
    for n in range(1, 20):
        await bus.publish(JobSucceeded(str(n), 1))
    await asyncio.sleep(0.3)
    go_on.set()
    await until(lambda: "gap" in told)
    await bus.publish(JobSucceeded("new", 1))
    await until(lambda: told[-1:] == ["new"])
    assert told[:2] == ["0", "gap"]
    assert len(told) <= 4  # what waited is not handled after it; one may have been on its way


async def test_no_handler_outlives_its_subscription(bus: RabbitBus, lane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "CLOSE_AFTER_S", 0.1)
    ends: list[str] = []
    working = asyncio.Event()

    async def handler(_: object) -> None:
        working.set()
        try:
            await asyncio.sleep(30.0)
        finally:
            await asyncio.sleep(0.2)
            ends.append("ended")

    subscription = await bus.subscribe([JobSucceeded], handler, queue=lane)
    await bus.publish(JobSucceeded("a", 1))
    await asyncio.wait_for(working.wait(), SOON_S)
    for link in bus._links[1:]:  # with a second one waiting for the first, as after a lost channel
        assert link._connection is not None
        await link._connection.close()
    async with asyncio.timeout(SOON_S):
        while len(subscription._handling) < 2:
            await asyncio.sleep(0.02)
    await subscription.close()
    assert ends == ["ended"]
    assert not subscription._handling
    other = Heard()
    await bus.subscribe([JobSucceeded], other, queue=lane)
    await until(lambda: other.facts == [JobSucceeded("a", 1)])


# ---- queues ----


async def test_a_task_whose_workers_die_too_often_goes_to_the_dead_letters(
    bus: RabbitBus, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert RETURNS_BACKSTOP >= 50
    monkeypatch.setattr(queues, "RETURNS_BACKSTOP", 2)
    await bus.send(lane, GenerateImage("kills"), priority=7)
    for _ in range(3):
        receiver = await bus.receive([lane], prefetch=1)
        await asyncio.wait_for(receiver.get(), SOON_S)
        await receiver.close()  # as the broker sees it when the worker is killed
    receiver = await bus.receive([lane], prefetch=1)
    assert await nothing_for(receiver)
    letters: list[Any] = []
    async with asyncio.timeout(SOON_S):
        while not letters:
            letters = [letter for letter in await bus.dead_letters() if letter.lane == lane]
    assert (letters[0].message, "delivery_limit" in letters[0].reason) == (GenerateImage("kills"), True)
    assert letters[0].at > 0
    assert await bus.replay([letters[0].id]) == 1
    assert await take(receiver, 1) == ["kills"]


async def test_a_queue_that_was_deleted_is_made_again(bus: RabbitBus, lane: str) -> None:
    receiver = await bus.receive([lane], prefetch=1)
    await bus.send(lane, GenerateImage("a"))
    assert await take(receiver, 1) == ["a"]
    async with channel() as behind:
        await behind.queue_delete(lane)
    await bus.send(lane, GenerateImage("b"))
    assert await take(receiver, 1) == ["b"]


async def test_a_queue_of_another_kind_is_refused(bus: RabbitBus, lane: str) -> None:
    async with channel() as behind:
        await behind.declare_queue(lane, durable=True)
        with pytest.raises(ConfigurationError, match=lane):
            await bus.send(lane, GenerateImage("a"))
        with pytest.raises(ConfigurationError, match=lane):
            await bus.receive([lane], prefetch=1)
        await behind.queue_delete(lane)


async def test_a_named_fact_queue_of_another_kind_is_refused_at_once(bus: RabbitBus, lane: str) -> None:
    name = queues.facts_queue(lane).name
    async with channel() as behind:
        await behind.declare_queue(name, durable=True)
        with pytest.raises(ConfigurationError, match=rf"bus_url: queue '{name}' .*x-queue-type"):
            await asyncio.wait_for(bus.subscribe([JobSucceeded], Heard(), queue=lane), SOON_S)
        await behind.queue_delete(name)


async def test_an_exchange_of_another_kind_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with channel() as behind:
        await behind.declare_exchange("afterimage.test", aio_pika.ExchangeType.FANOUT, durable=True)
        monkeypatch.setattr(publisher, "FACTS", "afterimage.test")
        with pytest.raises(ConfigurationError, match=r"exchange .*afterimage.* exists with other arguments"):
            await asyncio.wait_for(RabbitBus(url_of("rabbitmq")).open(), SOON_S)
        await behind.exchange_delete("afterimage.test")


async def test_a_retry_queue_of_another_kind_is_named_and_its_task_does_not_spin(
    bus: RabbitBus, lane: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shared.bus.rabbitmq.receiving.NOT_OURS_TASK_S", 0.5)
    name = queues.retry_queue(lane, 1.0).name
    receiver = await bus.receive([lane], prefetch=1)
    await bus.send(lane, GenerateImage("a"))
    async with channel() as behind:
        await behind.declare_queue(name, durable=True)
        begun = asyncio.get_running_loop().time()
        await (await asyncio.wait_for(receiver.get(), SOON_S)).reject(delay_s=1.0)
        assert await take(receiver, 1) == ["a"]
        assert asyncio.get_running_loop().time() - begun >= 0.5
        await behind.queue_delete(name)
    said = capsys.readouterr()
    assert f"queue '{name}'" in said.out + said.err


async def test_whoever_finds_a_young_queue_waits_until_it_has_settled_too(
    bus: RabbitBus, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "SETTLE_S", 1.5)
    loop, second = asyncio.get_running_loop(), await RabbitBus(url_of("rabbitmq"), wait_s=10.0).open()
    await bus._publisher.declare(queues.lane_queue(lane))
    made = loop.time()
    await second.send(lane, GenerateImage("a"))
    assert loop.time() - made >= 1.4
    await asyncio.sleep(max(made + 4.0 - loop.time(), 0.0))
    third = await RabbitBus(url_of("rabbitmq"), wait_s=10.0).open()
    begun = loop.time()
    await third.send(lane, GenerateImage("b"))
    assert loop.time() - begun < 1.4  # an old queue is trusted at once
    await asyncio.gather(second.close(), third.close())


async def test_lanes_and_retries_are_durable_quorum_queues_with_at_least_once_dead_letters(
    bus: RabbitBus, lane: str
) -> None:
    receiver = await bus.receive([lane], prefetch=1)
    await bus.send(lane, GenerateImage("a"))
    await (await asyncio.wait_for(receiver.get(), SOON_S)).reject(delay_s=0.04)
    assert await take(receiver, 1) == ["a"]
    for name in (lane, f"{lane}.again.50ms"):
        for change in (
            {"x-queue-type": "classic"},
            {"x-dead-letter-strategy": "at-most-once"},
            {"x-delivery-limit": 7},
        ):
            base = queues.lane_queue(lane) if name == lane else queues.retry_queue(lane, 0.04)
            async with channel() as behind:
                with pytest.raises(aio_pika.exceptions.ChannelPreconditionFailed):
                    await behind.declare_queue(name, durable=True, arguments={**base.declared_with, **change})


@pytest.mark.parametrize(
    ("asked", "given"), [(0.001, 0.01), (0.05, 0.05), (0.3, 0.3), (0.31, 0.5), (1.0, 1.0), (8.0, 10.0), (61.0, 70.0)]
)
def test_a_delay_is_rounded_up_to_one_that_has_a_queue(asked: float, given: float) -> None:
    assert delay_of(asked) == pytest.approx(given)


# ---- messages ----


async def test_pictures_do_not_travel_on_the_bus(bus: RabbitBus, lane: str) -> None:
    with pytest.raises(InvalidRequestError, match="go to the blob store"):
        await bus.publish(Progress("a", 1, 2, preview="x" * MAX_BODY))
    with pytest.raises(InvalidRequestError, match="go to the blob store"):
        await bus.send(lane, GenerateImage("x" * MAX_BODY))
    heard = Heard()
    await bus.subscribe([EntriesCached], heard)
    many = EntriesCached(tuple(new_id() for _ in range(1000)))
    await bus.publish(many)
    await until(lambda: heard.facts == [many])


async def test_a_command_that_nobody_understands_is_buried(bus: RabbitBus, lane: str) -> None:
    receiver = await bus.receive([lane], prefetch=1)
    async with channel() as behind:
        for kind, body in (("DrawVideo", b"{}"), ("GenerateImage", b'{"job": 1}')):
            message = aio_pika.Message(body, type=kind, message_id=new_id())
            await behind.default_exchange.publish(message, lane)
    await bus.send(lane, GenerateImage("good"))
    assert await take(receiver, 1) == ["good"]
    async with asyncio.timeout(SOON_S):
        while len(letters := [one for one in await bus.dead_letters() if one.lane == lane]) < 2:
            await asyncio.sleep(0.05)
    assert {letter.kind for letter in letters} == {"DrawVideo", "GenerateImage"}
    assert all(letter.reason.startswith("not understood") for letter in letters)


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("library", ["opentelemetry", "none"])
async def test_the_trace_goes_on_where_a_message_is_handled(
    bus: RabbitBus, lane: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library == "none":
        monkeypatch.setattr(trace, "otel", None)
    else:
        assert trace.otel is not None
    handled: list[dict[str, str]] = []

    async def handler(_fact: object) -> None:
        handled.append(trace.outgoing())

    async def asked() -> None:
        trace.adopt({"traceparent": PARENT})
        await bus.send(lane, GenerateImage("a"))
        await bus.publish(JobSucceeded("a", 1))

    await bus.subscribe([JobSucceeded], handler)
    receiver = await bus.receive([lane], prefetch=1)
    await asyncio.create_task(asked())
    delivery = await receiver.get()
    assert trace.outgoing() == {"traceparent": PARENT}
    await delivery.reject()  # its copy belongs to the same trace
    trace.adopt({})
    assert trace.outgoing() == {}
    await receiver.get()
    assert trace.outgoing() == {"traceparent": PARENT}
    await until(lambda: handled == [{"traceparent": PARENT}])
    await bus.publish(JobSucceeded("b", 1))
    await bus.send(lane, GenerateImage("c"))
    trace.adopt({})
    await bus.publish(JobSucceeded("c", 1))
    await until(lambda: len(handled) == 3)
    assert handled[1:] == [{"traceparent": PARENT}, {}]


async def test_the_version_decides_about_priorities(bus: RabbitBus) -> None:
    link = Link(url_of("rabbitmq"), "looks")
    await link.ready(SOON_S)
    assert HEARTBEAT_S <= 10
    assert link.server_version >= (3, 10)
    assert bus.priorities == (link.server_version[0] >= 4)
    await link.close()
