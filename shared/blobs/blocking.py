"""Calls of a client that blocks, on threads of their own, which a server that hangs cannot pile up callers before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from shared.domain.errors import UnavailableError

R = TypeVar("R")

THREADS = 16
FREE_S = 10.0
"""How long a call waits for one of them before it asks whether the server answers anything at all; a caller that gave
up earlier leaves its thread to the client's own limits."""


class BlockingCalls:
    """At most THREADS calls at a time; a thread is free again when its call has ended, not when its caller has left."""

    def __init__(self, longest_s: float, hanging: Callable[[str], UnavailableError]) -> None:
        """longest_s: how long one call may go without an answer; hanging: the error to raise, from what is wrong."""
        self._longest_s, self._hanging = longest_s, hanging
        self._threads = ThreadPoolExecutor(THREADS, "blobs")
        self._free = asyncio.Semaphore(THREADS)
        self._answered_at = float("-inf")
        """When the server last was heard of, by the event loop's clock."""
        self._running: dict[Future[Any], float] = {}
        """Since when, by the same clock; oldest first."""

    async def run(self, work: Callable[[], R]) -> R:
        """What `work` returns or raises, an UnavailableError where nobody answered; such an error as `hanging` makes
        when every thread waits for a server that answers nobody."""
        await self._free_thread()
        loop = asyncio.get_running_loop()
        running = self._threads.submit(work)
        self._running[running] = loop.time()

        def ended(_: object) -> None:
            with suppress(RuntimeError):  # the loop has ended before its threads
                loop.call_soon_threadsafe(self._ended, running)

        running.add_done_callback(ended)
        return await asyncio.wrap_future(running)

    async def _free_thread(self) -> None:
        """However many wait, as long as the server answers some; and if it answers none, for as long as a single call
        may go without an answer: many slow uploads at once end late, and hang no more than one does."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(FREE_S):
                    await self._free.acquire()
                    return
            except TimeoutError as error:
                now = loop.time()
                oldest_s = now - next(iter(self._running.values()), now)
                if now - self._answered_at >= FREE_S and oldest_s >= self._longest_s:
                    raise self._hanging(f"all {THREADS} connections hang, the first for {oldest_s:.1f} s") from error

    def _ended(self, call: Future[Any]) -> None:
        self._free.release()
        del self._running[call]
        if not call.cancelled() and not isinstance(call.exception(), UnavailableError):
            self._answered_at = asyncio.get_running_loop().time()

    async def close(self) -> None:
        """Waits for the calls under way."""
        await asyncio.to_thread(self._threads.shutdown)
