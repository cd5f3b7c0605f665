"""Runs a coroutine on a channel, and again on a new channel when the old one is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import ChannelPreconditionFailed

from shared.bus.rabbitmq.link import CLOSE_S, GONE, Link, close, ended
from shared.runtime.telemetry import log

SERVE_AGAIN_S = 0.3
CALL_S = 10.0
"""Seconds that the broker may take for a reply."""
NOT_OURS = "exists with other arguments; delete it while nothing runs, or let bus_url name another vhost"
NOT_OURS_S = 30.0
"""Pause in seconds after a queue was found with other arguments; an operator must repair that."""

_log = log("bus")


async def keep_serving(link: Link, serve: Callable[[AbstractChannel], Coroutine[Any, Any, None]], what: str) -> None:
    """Run `serve` on a channel, and on a new one whenever the channel is lost, until `serve` returns."""
    while True:
        try:
            if await _served(await _opened(link), serve):
                return
            _log.warning("channel_lost", what=what)
        except ChannelPreconditionFailed as error:
            # another program recreated the queue during operation: do not end, and do not retry soon
            _log.error("queue_arguments_differ", what=what, error=str(error), rule=NOT_OURS, again_in_s=NOT_OURS_S)
            await asyncio.sleep(NOT_OURS_S)
        except GONE as error:
            _log.warning("channel_lost", what=what, error=repr(error))
        await asyncio.sleep(SERVE_AGAIN_S)


async def _opened(link: Link) -> AbstractChannel:
    """Return a new channel. A cancelled call waits for the channel to open and closes it.

    An interrupted opening could block every other call of the connection.
    """
    opening = asyncio.ensure_future(link.channel())
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        if link.up:
            await asyncio.wait([opening], timeout=CLOSE_S)
        if opening.done() and not opening.cancelled() and opening.exception() is None:
            await close(opening.result())
        raise
    finally:
        opening.cancel()


async def _served(channel: AbstractChannel, serve: Callable[[AbstractChannel], Coroutine[Any, Any, None]]) -> bool:
    """Run `serve` on this channel; return False if the channel was lost first."""
    lost = asyncio.ensure_future(channel.closed())
    serving = asyncio.create_task(serve(channel))
    try:
        await asyncio.wait((lost, serving), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        return serving.done()
    finally:
        await ended(lost, serving)
        await close(channel)


async def one_of(queue: AbstractQueue) -> AbstractIncomingMessage | None:
    """Return the queue's next message, or None; raise TimeoutError if the broker does not reply."""
    async with asyncio.timeout(CALL_S):
        return await queue.get(fail=False, timeout=None)


async def close_when_cancelled(channel: AbstractChannel) -> None:
    """Close the channel when the broker cancels a consumer because its queue was deleted, so that serving restarts."""
    closing: set[asyncio.Task[None]] = set()

    def taken(_frame: object) -> None:
        closing.add(asyncio.create_task(close(channel)))

    (await channel.get_underlay_channel()).on_consumer_cancel_callbacks.add(taken)
