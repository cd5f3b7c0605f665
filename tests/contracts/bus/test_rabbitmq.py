"""What only a bus with a broker of its own must do with facts and messages."""

from __future__ import annotations

import asyncio

import aio_pika
import pytest
from aiormq.connection import Connection

from shared.bus.rabbitmq import RabbitBus, facts
from shared.bus.rabbitmq.link import Link
from shared.bus.rabbitmq.publisher import MAX_BODY
from shared.domain.errors import InvalidRequestError
from shared.domain.ids import new_id
from shared.domain.messages import EntriesCached, GenerateImage, JobSucceeded, Progress
from tests.contracts.bus.conftest import SOON_S, Heard, take, until
from tests.contracts.bus.rabbit import channel
from tests.contracts.servers import url_of


@pytest.fixture
async def bus(rabbit: RabbitBus) -> RabbitBus:
    return rabbit


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


async def test_pictures_do_not_travel_on_the_bus(bus: RabbitBus, lane: str) -> None:
    with pytest.raises(InvalidRequestError, match="bytes on the bus"):
        await bus.publish(Progress("a", 1, 2, preview="x" * MAX_BODY))
    with pytest.raises(InvalidRequestError, match="bytes on the bus"):
        await bus.send(lane, GenerateImage("x" * MAX_BODY))
    heard = Heard()
    await bus.subscribe([EntriesCached], heard)
    many = EntriesCached(tuple(new_id() for _ in range(1000)))
    await bus.publish(many)
    await until(lambda: heard.facts == [many])


async def test_what_no_version_understands_is_buried(bus: RabbitBus, lane: str) -> None:
    receiver = await bus.receive([lane], prefetch=1)
    async with channel() as behind:
        for kind, body in (("DrawVideo", b"[]"), ("GenerateImage", b"\xff"), (None, b"{}")):
            message = aio_pika.Message(body, type=kind, message_id=new_id())
            await behind.default_exchange.publish(message, lane)
    await bus.send(lane, GenerateImage("good"))
    assert await take(receiver, 1) == ["good"]
    async with asyncio.timeout(SOON_S):
        while len(letters := [one for one in await bus.dead_letters() if one.lane == lane]) < 3:
            await asyncio.sleep(0.05)
    assert {letter.kind for letter in letters} == {"DrawVideo", "GenerateImage", ""}
    assert all(letter.reason.startswith("not understood") for letter in letters)


async def test_a_silent_broker_is_taken_for_dead_within_twenty_seconds() -> None:
    link = Link("amqp://nobody@127.0.0.1:9/", "looks")
    asked_s = int(link._url.query["heartbeat"])
    await link.close()
    assert (asked_s + 1) * Connection.HEARTBEAT_GRACE_MULTIPLIER < 20


async def test_the_version_decides_about_priorities(bus: RabbitBus) -> None:
    link = Link(url_of("rabbitmq"), "looks")
    await link.ready(SOON_S)
    assert link.server_version >= (3, 10)
    assert bus.priorities == (link.server_version[0] >= 4)
    await link.close()
