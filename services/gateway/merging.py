"""Several event streams as one, in the order of their events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import TypeVar

T = TypeVar("T")


async def merged(streams: Sequence[AsyncIterator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """Yield the items of all streams as they come, each with the number of its stream. An error of one ends all."""
    news: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(1)  # a slow reader holds the streams up

    async def pump(number: int, stream: AsyncIterator[T]) -> None:
        try:
            async for item in stream:
                await news.put((number, item))
            await news.put(None)
        except Exception as error:
            await news.put(error)

    pumps = [asyncio.create_task(pump(number, stream)) for number, stream in enumerate(streams)]
    try:
        left = len(pumps)
        while left:
            match await news.get():
                case None:
                    left -= 1
                case Exception() as error:
                    raise error
                case item:
                    yield item
    finally:
        for one in pumps:
            one.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
