"""Many together or one alone, and whoever leaves lets the next one in."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

import pytest

from services.gpu_worker.jobs.process import SharedExclusiveLock


class Hand:
    """Someone who takes a turn when it comes, and keeps it until told."""

    def __init__(self, turn: AbstractAsyncContextManager[None]) -> None:
        self.here, self._end = False, asyncio.Event()
        self.task = asyncio.create_task(self._take(turn))

    async def _take(self, turn: AbstractAsyncContextManager[None]) -> None:
        async with turn:
            self.here = True
            await self._end.wait()
        self.here = False

    async def leave(self) -> None:
        self._end.set()
        await self.task
        await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_alone_waits_for_those_together_and_they_for_it() -> None:
    turns = SharedExclusiveLock()
    one, two = Hand(turns.together()), Hand(turns.together())
    await settled()
    alone = Hand(turns.alone())
    await settled()
    later = Hand(turns.together())
    await settled()
    assert (one.here, two.here, alone.here, later.here) == (True, True, False, False)
    await one.leave()
    assert not alone.here
    await two.leave()
    assert (alone.here, later.here) == (True, False)
    second = Hand(turns.alone())
    await alone.leave()
    assert (second.here, later.here) == (True, False)
    await second.leave()
    assert later.here
    await later.leave()


async def test_whoever_stops_waiting_holds_nobody_up() -> None:
    turns = SharedExclusiveLock()
    one = Hand(turns.together())
    await settled()
    alone, later = Hand(turns.alone()), Hand(turns.together())
    await settled()
    alone.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await alone.task
    await settled()
    assert later.here
    await one.leave()
    await later.leave()
