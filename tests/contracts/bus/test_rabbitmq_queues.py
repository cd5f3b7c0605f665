"""Queues and exchanges as the broker has them: declared, deleted, of another kind, too young to be trusted."""

from __future__ import annotations

import asyncio
from typing import Any

import aio_pika
import pytest

from shared.bus.rabbitmq import RabbitBus, declaring, publisher, queues
from shared.bus.rabbitmq.queues import RETURNS_BACKSTOP, delay_of
from shared.domain.errors import ConfigurationError
from shared.domain.messages import GenerateImage, JobSucceeded
from tests.contracts.bus.conftest import SOON_S, Heard, nothing_for, take
from tests.contracts.bus.rabbit import channel
from tests.contracts.servers import url_of


@pytest.fixture
async def bus(rabbit: RabbitBus) -> RabbitBus:
    return rabbit


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


async def test_a_dead_letter_goes_when_it_is_too_old(
    bus: RabbitBus, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = await bus.receive([lane], prefetch=1)
    for kept_s in (2.0, 60.0):
        monkeypatch.setattr("shared.bus.rabbitmq.returns.KEPT_S", kept_s)
        await bus.send(lane, GenerateImage(f"kept for {kept_s:g} s"))
        assert await (await asyncio.wait_for(receiver.get(), SOON_S)).bury("three errors")
    letters: list[Any] = []
    async with asyncio.timeout(SOON_S):
        while [letter.message for letter in letters] != [GenerateImage("kept for 60 s")]:
            letters = [letter for letter in await bus.dead_letters() if letter.lane == lane]
    assert await bus.replay([letters[0].id]) == 1
    assert await take(receiver, 1) == ["kept for 60 s"]


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
    monkeypatch.setattr("shared.bus.rabbitmq.delivery.NOT_OURS_TASK_S", 0.5)
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
    monkeypatch.setattr(declaring, "SETTLE_S", 1.5)
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
