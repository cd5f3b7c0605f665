"""Commands that cannot be done become dead letters, which an operator can send again."""

from __future__ import annotations

import asyncio
import time

from shared.bus import Bus
from shared.domain.messages import GenerateImage
from tests.contracts.bus.conftest import SOON_S, DeadLetters, nothing_for


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


async def test_a_delivery_may_stand_for_another_command(bus: Bus, lane: str, dead_letters: DeadLetters) -> None:
    """A worker that took the most urgent job of a lane returns or buries the task of that job."""
    receiver = await bus.receive([lane], prefetch=1)
    await bus.send(lane, GenerateImage("patient"))
    delivery = await asyncio.wait_for(receiver.get(), SOON_S)
    assert delivery.lane == lane
    delivery.stand_for(GenerateImage("urgent", only=True))
    await delivery.reject(counts=False)
    again = await asyncio.wait_for(receiver.get(), SOON_S)
    assert (again.message, again.redelivered) == (GenerateImage("urgent", only=True), True)
    again.stand_for(GenerateImage("third"))
    await again.bury("three errors")
    assert [letter.message for letter in await dead_letters()] == [GenerateImage("third")]
