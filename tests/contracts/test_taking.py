"""A worker that changes its lanes loses no task and draws none twice, whatever the bus."""

from __future__ import annotations

import asyncio

from services.gpu_worker.taking import Taking
from shared.bus import Bus, Delivery
from shared.messages import GenerateImage
from tests.contracts.test_bus import SOON_S


class Worker:
    """Draws one task after the other in no time, or holds it until it is told to go on."""

    def __init__(self, bus: Bus, most: int) -> None:
        self.taking = Taking(bus, most, self._handle)
        self.began: list[str] = []
        self.drawn: list[str] = []
        self.held = asyncio.Event()
        self.held.set()

    async def _handle(self, delivery: Delivery) -> None:
        assert isinstance(delivery.message, GenerateImage)
        self.began.append(delivery.message.job_id)
        await self.held.wait()
        self.drawn.append(delivery.message.job_id)
        await delivery.ack()

    async def until_drawn(self, count: int) -> None:
        async with asyncio.timeout(SOON_S):
            while len(self.drawn) < count:
                await asyncio.sleep(0.005)

    async def until_begun(self, count: int) -> None:
        async with asyncio.timeout(SOON_S):
            while len(self.began) < count:
                await asyncio.sleep(0.005)


async def test_from_one_lane_to_others_and_back(bus: Bus, lane: str) -> None:
    worker, lanes = Worker(bus, 2), (lane, f"{lane}-refine", f"{lane}-small")
    names = [f"{at}-{n}" for at in range(3) for n in range(6)]
    for name in names:
        await bus.send(lanes[int(name[0])], GenerateImage(name))
    await worker.taking.begin(lanes[:1])
    await worker.until_drawn(3)
    await worker.taking.begin(lanes[1:])  # from one that the broker pushes to two that are asked
    await worker.until_drawn(9)
    await worker.taking.begin(lanes)
    await worker.until_drawn(len(names))
    await worker.taking.close(1.0)
    assert sorted(worker.drawn) == names


async def test_what_is_in_hand_is_finished_while_other_lanes_are_taken_from(bus: Bus, lane: str) -> None:
    worker, other = Worker(bus, 2), f"{lane}-other"
    worker.held.clear()
    await bus.send(lane, GenerateImage("slow"))
    await worker.taking.begin((lane,))
    await worker.until_begun(1)
    await worker.taking.begin((other,))
    await bus.send(other, GenerateImage("quick"))
    await worker.until_begun(2)
    await bus.send(other, GenerateImage("third"))
    await asyncio.sleep(0.1)
    assert worker.began == ["slow", "quick"]  # never more than two in hand, from all lanes together
    worker.held.set()
    await worker.until_drawn(3)
    await worker.taking.close(1.0)
    assert sorted(worker.drawn) == ["quick", "slow", "third"]


async def test_a_drain_takes_nothing_new_and_leaves_the_rest_to_others(bus: Bus, lane: str) -> None:
    worker, other = Worker(bus, 1), Worker(bus, 1)
    worker.held.clear()
    for n in range(4):
        await bus.send(lane, GenerateImage(str(n)))
    await worker.taking.begin((lane,))
    await worker.until_begun(1)
    await worker.taking.pause()
    worker.held.set()
    await asyncio.wait_for(worker.taking.finished(), SOON_S)
    assert worker.drawn == ["0"]
    await worker.taking.begin((f"{lane}-small",))
    await other.taking.begin((lane,))
    await other.until_drawn(3)
    assert sorted(other.drawn) == ["1", "2", "3"]
    for one in (worker, other):
        await one.taking.close(1.0)
