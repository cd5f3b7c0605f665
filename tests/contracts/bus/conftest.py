"""Shared waits and handlers for the tests of message queues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from shared.bus import DeadLetter, Receiver
from shared.domain.messages import GenerateImage, Message

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
