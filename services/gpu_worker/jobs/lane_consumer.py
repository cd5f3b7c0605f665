"""Takes tasks from the worker's lanes, never more than it has rows for, and lets go of lanes without losing a task."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from shared.bus import Bus, Delivery, Receiver
from shared.domain.errors import UnavailableError
from shared.runtime.telemetry import log


class LaneConsumer:
    """`handle` is run once per task, as a task of its own; it settles its delivery."""

    def __init__(self, bus: Bus, most: int, handle: Callable[[Delivery], Coroutine[Any, Any, None]]) -> None:
        self._bus, self._most, self._handle = bus, most, handle
        self.in_hand: set[asyncio.Task[None]] = set()
        self.lanes: tuple[str, ...] = ()
        self._wanted = self._aside = False
        self._one_at_a_time = asyncio.Lock()
        """Of what begins and what ends the taking."""
        self._receiver: Receiver | None = None
        self._loop: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def going_on(self) -> bool:
        """Whether it takes what comes, or will once it stands aside no more."""
        return self._wanted

    async def begin(self, lanes: tuple[str, ...]) -> None:
        """From these lanes from now on, or from when it stands aside no more; what is in hand is finished meanwhile.
        Raises what the bus raises."""
        async with self._one_at_a_time:
            if not self._aside:
                await self._open(lanes)
            self.lanes, self._wanted = lanes, True

    async def pause(self) -> None:
        """Takes nothing new, and what the bus brought ahead goes back to its lanes for others (design §8, prefetch);
        cancelling a receiver's get loses nothing."""
        async with self._one_at_a_time:
            self._wanted = False
            await self._shut()

    async def stand_aside(self) -> None:
        """As `pause`, until `come_back`, whoever begins meanwhile."""
        async with self._one_at_a_time:
            self._aside = True
            await self._shut()

    async def come_back(self) -> None:
        """Takes again where that is wanted. Raises what the bus raises, and then stands aside still."""
        async with self._one_at_a_time:
            if self._wanted:
                await self._open(self.lanes)
            self._aside = False

    async def finished(self) -> None:
        """Until nothing is in hand."""
        while self.in_hand:
            await asyncio.wait(self.in_hand)

    async def close(self, timeout_s: float) -> None:
        """Takes nothing new; what is not finished in time is cancelled, which hands it back."""
        await self.pause()
        if self.in_hand:
            await asyncio.wait(self.in_hand, timeout=timeout_s)
        for task in self.in_hand:
            task.cancel()
        await asyncio.gather(*self.in_hand, *self._leaving, return_exceptions=True)
        if self._receiver is not None:
            await self._receiver.close()

    async def _open(self, lanes: tuple[str, ...]) -> None:
        # beside what is in hand, tasks brought ahead would wait here though another worker has a free row
        ahead = self._loop is None and not self.in_hand
        receiver = await self._bus.receive(lanes, prefetch=self._most, ahead=ahead)
        await self._end_loop()
        if self._receiver is not None:
            leaving = asyncio.create_task(_leave(self._receiver, set(self.in_hand)))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        self._receiver = receiver
        self._loop = asyncio.create_task(self._take(receiver))

    async def _shut(self) -> None:
        await self._end_loop()
        if self._receiver is not None:
            await self._receiver.stop()

    async def _end_loop(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
            self._loop = None

    async def _take(self, receiver: Receiver) -> None:
        """A delivery in hand is a row taken."""
        with contextlib.suppress(UnavailableError):  # the bus is closed
            while True:
                while len(self.in_hand) >= self._most:
                    await asyncio.wait(self.in_hand, return_when=asyncio.FIRST_COMPLETED)
                task = asyncio.create_task(self._handle(await receiver.get()))
                self.in_hand.add(task)
                task.add_done_callback(self.in_hand.discard)


async def _leave(receiver: Receiver, in_hand: set[asyncio.Task[None]]) -> None:
    """Nothing more comes from there at once; closing would give back what is still being drawn."""
    try:
        await receiver.stop()
        if in_hand:
            await asyncio.wait(in_hand)
        await receiver.close()
    except Exception as error:
        log("gpu_worker").warning("lanes not left", error=repr(error))
