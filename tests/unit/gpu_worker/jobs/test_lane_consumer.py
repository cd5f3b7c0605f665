"""The consumer of lanes takes as many tasks as their frames fit into the worker's rows."""

from __future__ import annotations

import asyncio

import pytest

from services.gpu_worker.jobs.lane_consumer import LaneConsumer
from shared.bus import Delivery
from shared.bus.inprocess import InProcessBus
from shared.domain.messages import GenerateImage


@pytest.mark.parametrize(
    ("most", "frames", "taken"),
    [
        (8, [1] * 9, 8),
        (8, [4, 4, 4], 2),
        (8, [16, 16], 1),
        (64, [64] * 4, 1),
        (64, [16] * 5, 4),
        (64, [48, 4, 4], 1),
    ],
)
async def test_frames_in_hand_count_as_rows(most: int, frames: list[int], taken: int) -> None:
    """The next task is expected to be as long as the longest in hand."""
    bus, seen, go_on = InProcessBus(), list[int](), asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        assert isinstance(delivery.message, GenerateImage)
        seen.append(delivery.message.frames)
        await go_on.wait()
        await delivery.ack()

    for number, each in enumerate(frames):
        await bus.send("generate.clips", GenerateImage(str(number), frames=each))
    consumer = LaneConsumer(bus, most, handle, ahead=False)
    await consumer.begin(("generate.clips",))
    await asyncio.sleep(0.05)
    assert seen == frames[:taken]
    go_on.set()
    async with asyncio.timeout(5):
        while len(seen) < len(frames):
            await asyncio.sleep(0.005)
    await consumer.close(1.0)
    await bus.close()
