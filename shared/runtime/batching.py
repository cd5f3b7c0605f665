"""Micro-batching: items that arrive while a model is busy, or within a short wait, share a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

I = TypeVar("I", bound=Hashable)  # noqa: E741 — the usual letters for input and output
O = TypeVar("O")  # noqa: E741


def boarding(waiting: Iterable[I], seats: int) -> list[I]:
    """Return the next batch: the longest waiting items, at most `seats`, each once."""
    return list(islice(dict.fromkeys(waiting), seats))


@dataclass(slots=True)
class _Waiting(Generic[O]):
    """One item that waits for its batch."""

    answer: asyncio.Future[O]
    callers: int = 0


class MicroBatcher(Generic[I, O]):
    """Runs one batch at a time; equal items that wait together are computed once. Items whose callers all left are
    not computed."""

    def __init__(self, run: Callable[[list[I]], Awaitable[Sequence[O]]], *, seats: int, wait_s: float = 0.0) -> None:
        """`run` returns a batch's results in order; after an idle period, the first item waits `wait_s` for others."""
        self._run = run
        self._seats = seats
        self._wait_s = wait_s
        self._waiting: dict[I, _Waiting[O]] = {}
        self._running: asyncio.Task[None] | None = None

    async def submit(self, items: Sequence[I]) -> list[O]:
        """Return the results in the items' order; raise the error of the batch that failed."""
        places = [self._enqueue(item) for item in items]
        if places and (self._running is None or self._running.done()):
            self._running = asyncio.create_task(self._ride())
        try:
            # shielded: a caller that is cancelled must not cancel the result of callers with the same item
            return list(await asyncio.gather(*(asyncio.shield(place.answer) for place in places)))
        finally:
            for item, place in zip(items, places, strict=True):
                place.callers -= 1
                if place.callers == 0 and self._waiting.get(item) is place:
                    del self._waiting[item]

    async def close(self) -> None:
        """Wait for the batches in progress."""
        if self._running is not None:
            await self._running

    def _enqueue(self, item: I) -> _Waiting[O]:
        if (place := self._waiting.get(item)) is None:
            place = self._waiting[item] = _Waiting(asyncio.get_running_loop().create_future())
            place.answer.add_done_callback(_seen)
        place.callers += 1
        return place

    async def _ride(self) -> None:
        if self._wait_s and len(self._waiting) < self._seats:
            await asyncio.sleep(self._wait_s)
        while self._waiting:
            batch = boarding(self._waiting, self._seats)
            futures = [self._waiting.pop(item).answer for item in batch]
            try:
                for future, answer in zip(futures, await self._run(batch), strict=True):
                    future.set_result(answer)
            except Exception as error:
                for future in futures:
                    if not future.done():
                        future.set_exception(error)


def _seen(future: asyncio.Future[O]) -> None:
    """Mark the error as retrieved: without callers left, asyncio would log a warning."""
    if not future.cancelled():
        future.exception()
