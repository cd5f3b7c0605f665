"""Micro-batching: what arrives while the encoder is busy, or within a short wait, rides together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from itertools import islice
from typing import Generic, TypeVar

I = TypeVar("I", bound=Hashable)  # noqa: E741 — the field's letters for input and output
O = TypeVar("O")  # noqa: E741


def boarding(waiting: Iterable[I], seats: int) -> list[I]:
    """Who rides next: the longest waiting, at most `seats`, each thing once."""
    return list(islice(dict.fromkeys(waiting), seats))


class MicroBatcher(Generic[I, O]):
    """Runs one batch at a time; equal items that wait together are computed once."""

    def __init__(self, run: Callable[[list[I]], Awaitable[Sequence[O]]], *, seats: int, wait_s: float = 0.0) -> None:
        """`run` answers a batch in its order; `wait_s` is how long the first item of an idle time waits for others."""
        self._run = run
        self._seats = seats
        self._wait_s = wait_s
        self._waiting: dict[I, asyncio.Future[O]] = {}
        self._running: asyncio.Task[None] | None = None

    async def submit(self, items: Sequence[I]) -> list[O]:
        """The answers in the items' order; raises what their batch raised."""
        futures = [self._enqueue(item) for item in items]
        if futures and (self._running is None or self._running.done()):
            self._running = asyncio.create_task(self._ride())
        # shielded: who gives up must not take the answer from those who asked for the same
        return list(await asyncio.gather(*(asyncio.shield(future) for future in futures)))

    async def close(self) -> None:
        """Waits for what is on its way."""
        if self._running is not None:
            await self._running

    def _enqueue(self, item: I) -> asyncio.Future[O]:
        if item not in self._waiting:
            future: asyncio.Future[O] = asyncio.get_running_loop().create_future()
            future.add_done_callback(_seen)
            self._waiting[item] = future
        return self._waiting[item]

    async def _ride(self) -> None:
        if self._wait_s and len(self._waiting) < self._seats:
            await asyncio.sleep(self._wait_s)
        while self._waiting:
            batch = boarding(self._waiting, self._seats)
            futures = [self._waiting.pop(item) for item in batch]
            try:
                for future, answer in zip(futures, await self._run(batch), strict=True):
                    future.set_result(answer)
            except Exception as error:
                for future in futures:
                    if not future.done():
                        future.set_exception(error)


def _seen(future: asyncio.Future[O]) -> None:
    """Everyone who asked may be gone; an error nobody waits for is no warning."""
    if not future.cancelled():
        future.exception()
