"""A worker that changes its lanes loses no task and draws none twice, whatever the bus."""

from __future__ import annotations

import asyncio

import pytest

from services.gpu_worker.jobs.lane_consumer import LaneConsumer
from shared.bus import Bus, Delivery
from shared.domain.errors import UnavailableError
from shared.domain.messages import GenerateImage
from tests.contracts.bus.conftest import SOON_S, nothing_for, take


class Worker:
    """Draws one task after the other in no time, or holds it until it is told to go on."""

    def __init__(self, bus: Bus, most: int) -> None:
        self.taking = LaneConsumer(bus, most, self._handle)
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


async def test_beside_what_is_in_hand_nothing_is_brought_ahead(bus: Bus, lane: str) -> None:
    """What would wait here is drawn by a worker that has a free row."""
    worker, other = Worker(bus, 2), Worker(bus, 2)
    worker.held.clear()
    for n in range(2):
        await bus.send(lane, GenerateImage(str(n)))
    await worker.taking.begin((lane,))
    await worker.until_begun(2)
    await worker.taking.begin((f"{lane}-other",))
    for n in range(2, 4):
        await bus.send(f"{lane}-other", GenerateImage(str(n)))
    await asyncio.sleep(0.2)  # time for a broker to bring them
    await other.taking.begin((f"{lane}-other",))
    await other.until_drawn(2)
    worker.held.set()
    await worker.until_drawn(2)
    await other.taking.pause()
    await bus.send(f"{lane}-other", GenerateImage("4"))
    await worker.until_drawn(3)  # with a free row it takes from there
    for one in (worker, other):
        await one.taking.close(1.0)
    assert (sorted(worker.drawn), sorted(other.drawn)) == (["0", "1", "4"], ["2", "3"])


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


def lanes_of(lane: str, count: int) -> tuple[str, ...]:
    """One lane is pushed by a broker, several are asked."""
    return (lane, f"{lane}-refine")[:count]


@pytest.mark.parametrize("count", [1, 2])
async def test_a_worker_that_switches_holds_no_task_that_it_may_not_take(bus: Bus, lane: str, count: int) -> None:
    worker, other = Worker(bus, 4), Worker(bus, 4)
    worker.held.clear()
    for n in range(8):
        await bus.send(lane, GenerateImage(str(n)))
    await worker.taking.begin(lanes_of(lane, count))
    await worker.until_begun(4)
    await worker.taking.pause()
    worker.held.set()
    await asyncio.wait_for(worker.taking.finished(), SOON_S)  # and now it would load the other model
    await other.taking.begin(lanes_of(lane, count))
    await other.until_drawn(4)
    assert sorted(worker.drawn + other.drawn) == [str(n) for n in range(8)]
    assert len(worker.drawn) == 4
    for one in (worker, other):
        await one.taking.close(1.0)


@pytest.mark.parametrize("count", [1, 2])
async def test_a_worker_that_waits_for_tasks_listens_no_more_once_paused(bus: Bus, lane: str, count: int) -> None:
    worker, other = Worker(bus, 2), Worker(bus, 2)
    await worker.taking.begin(lanes_of(lane, count))
    await asyncio.sleep(0.1)
    await worker.taking.pause()
    for n in range(2):
        await bus.send(lane, GenerateImage(str(n)))
    await other.taking.begin(lanes_of(lane, count))
    await other.until_drawn(2)
    assert worker.began == []
    for one in (worker, other):
        await one.taking.close(1.0)


@pytest.mark.parametrize("count", [1, 2])
async def test_a_worker_that_stands_aside_leaves_what_it_does_not_draw_and_comes_back(
    bus: Bus, lane: str, count: int
) -> None:
    worker, other = Worker(bus, 4), Worker(bus, 4)
    worker.held.clear()
    await bus.send(lane, GenerateImage("slow"))
    await worker.taking.begin(lanes_of(lane, count))
    await worker.until_begun(1)
    await worker.taking.stand_aside()
    await worker.taking.begin(lanes_of(lane, count))  # counts later
    for n in range(4):
        await bus.send(lane, GenerateImage(str(n)))
    await other.taking.begin(lanes_of(lane, count))
    await other.until_drawn(4)
    await other.taking.pause()
    await worker.taking.come_back()
    await bus.send(lane, GenerateImage("next"))
    await worker.until_begun(2)
    worker.held.set()
    await worker.until_drawn(2)
    assert worker.drawn == ["slow", "next"]
    for one in (worker, other):
        await one.taking.close(1.0)


async def test_a_drain_that_cuts_a_beginning_short_leaves_nobody_who_takes(bus: Bus, lane: str) -> None:
    for n in range(3):
        await bus.send(lane, GenerateImage(str(n)))
    for turns in range(40):  # wherever the beginning is by then
        beginning = asyncio.create_task(bus.receive([lane], prefetch=3))
        for _ in range(turns):
            await asyncio.sleep(0)
        beginning.cancel()
        (receiver,) = await asyncio.gather(beginning, return_exceptions=True)
        if not isinstance(receiver, BaseException):
            await receiver.close()
    other = await bus.receive([lane], prefetch=3)
    assert sorted(await take(other, 3)) == ["0", "1", "2"]
    await other.close()


async def test_a_lane_that_was_left_is_others_while_its_last_task_is_drawn(bus: Bus, lane: str) -> None:
    worker, other = Worker(bus, 2), Worker(bus, 1)
    worker.held.clear()
    await bus.send(lane, GenerateImage("slow"))
    await worker.taking.begin((lane,))
    await worker.until_begun(1)
    await worker.taking.begin((f"{lane}-other",))
    await asyncio.sleep(0.1)
    await bus.send(lane, GenerateImage("next"))
    await other.taking.begin((lane,))
    await other.until_drawn(1)
    assert (worker.began, other.drawn) == (["slow"], ["next"])
    worker.held.set()
    await worker.until_drawn(1)
    for one in (worker, other):
        await one.taking.close(1.0)


@pytest.mark.parametrize("count", [1, 2])
async def test_a_stopped_receiver_keeps_only_what_is_in_hand(bus: Bus, lane: str, count: int) -> None:
    for n in range(4):
        await bus.send(lane, GenerateImage(str(n)))
    first = await bus.receive(lanes_of(lane, count), prefetch=3)
    held = [await asyncio.wait_for(first.get(), SOON_S) for _ in range(2)]
    await first.stop()
    with pytest.raises(UnavailableError):
        await first.get()
    second = await bus.receive(lanes_of(lane, count), prefetch=4)
    assert sorted(await take(second, 2)) == ["2", "3"]
    await held[0].ack()
    assert await nothing_for(second)
    await held[1].reject()  # it is still there to be settled
    assert await take(second, 1) == ["1"]
    await first.close()
    assert await nothing_for(second)
