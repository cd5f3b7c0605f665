"""Runs a blocking client's calls on threads, with limited waiting when the server hangs."""

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
"""Seconds that a call waits for a free thread before checking whether the server answers any call.

A cancelled caller leaves its thread to the client's own timeouts.
"""


class BlockingCalls:
    """Runs at most THREADS calls at a time. A thread is free when its call has ended, not when its caller has left."""

    def __init__(self, longest_s: float, hanging: Callable[[str], UnavailableError]) -> None:
        """`longest_s`: the time limit of one call without a reply. `hanging`: creates the error from a description."""
        self._longest_s, self._hanging = longest_s, hanging
        self._threads = ThreadPoolExecutor(THREADS, "blobs")
        self._free = asyncio.Semaphore(THREADS)
        self._answered_at = float("-inf")
        """Time of the last reply by the server, by the event loop's clock."""
        self._running: dict[Future[Any], float] = {}
        """Running calls → start time by the same clock, oldest first."""

    async def run(self, work: Callable[[], R]) -> R:
        """Return or raise the result of `work`, which raises UnavailableError if the server does not reply.

        Raise the error made by `hanging` if every thread waits for a server that answers no call.
        """
        await self._free_thread()
        loop = asyncio.get_running_loop()
        running = self._threads.submit(work)
        self._running[running] = loop.time()

        def ended(_: object) -> None:
            with suppress(RuntimeError):  # the loop ended before its threads
                loop.call_soon_threadsafe(self._ended, running)

        running.add_done_callback(ended)
        return await asyncio.wrap_future(running)

    async def _free_thread(self) -> None:
        """Wait for a free thread, with any number of waiting callers, as long as the server answers some calls.

        If the server answers none, wait no longer than one call may take without a reply. Many slow uploads at once
        thus end late, but do not fail.
        """
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
        """Wait for the calls in progress."""
        await asyncio.to_thread(self._threads.shutdown)
