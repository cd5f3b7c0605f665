"""Facts nobody is promised: whoever has them goes on, whatever the bus does."""

from __future__ import annotations

import asyncio

import pytest

from shared.bus import hints
from shared.bus.hints import Hints
from shared.bus.inprocess import InProcessBus
from shared.domain.errors import UnavailableError
from shared.domain.messages import Message, StateUsed
from shared.runtime.telemetry import METRICS


class Broker(InProcessBus):
    """Takes facts when it is told to; before that they wait, as for a broker that is away."""

    def __init__(self) -> None:
        super().__init__()
        self.back = asyncio.Event()
        self.told: list[Message] = []

    async def publish(self, message: Message) -> None:
        await self.back.wait()
        if message == StateUsed("refused", 1):
            raise UnavailableError("connection lost")
        self.told.append(message)


def lost() -> float:
    return float(METRICS.hints_lost.labels("StateUsed")._value.get())


async def test_telling_waits_for_nothing_and_closing_for_what_is_on_its_way() -> None:
    broker, before = Broker(), lost()
    telling = Hints(broker, "gateway")
    for name in ("one", "refused", "two"):
        telling.tell(StateUsed(name, 1))
    assert broker.told == []
    asyncio.get_running_loop().call_later(0.05, broker.back.set)
    await telling.close()
    assert broker.told == [StateUsed("one", 1), StateUsed("two", 1)]
    assert lost() - before == 1  # and nobody had to hear of it


async def test_a_bus_that_stays_away_neither_fills_the_memory_nor_holds_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hints, "CLOSE_AFTER_S", 0.05)
    broker, before = Broker(), lost()
    telling = Hints(broker, "gateway")
    for number in range(hints.MOST + 5):
        telling.tell(StateUsed(str(number), 1))
    assert lost() - before == 5
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await telling.close()
    assert lost() - before == hints.MOST + 5
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
