"""What runs on a channel, and again on a new one after that was lost."""

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
"""How long the broker may take for an answer."""
NOT_OURS = "exists with other arguments; delete it while nothing runs, or let bus_url name another vhost"
NOT_OURS_S = 30.0
"""Pause after a queue turned out to be another's: somebody has to mend that."""

_log = log("bus")


async def keep_serving(link: Link, serve: Callable[[AbstractChannel], Coroutine[Any, Any, None]], what: str) -> None:
    """Runs `serve` on a channel, and again on a new one whenever that is lost, until it returns by itself."""
    while True:
        try:
            if await _served(await _opened(link), serve):
                return
            _log.warning("channel_lost", what=what)
        except ChannelPreconditionFailed as error:
            # remade by someone else while we ran: no reason to end, nor to hurry
            _log.error("not_ours", what=what, error=str(error), rule=NOT_OURS, again_in_s=NOT_OURS_S)
            await asyncio.sleep(NOT_OURS_S)
        except GONE as error:
            _log.warning("channel_lost", what=what, error=repr(error))
        await asyncio.sleep(SERVE_AGAIN_S)


async def _opened(link: Link) -> AbstractChannel:
    """A new channel. A cancelled call waits for one that is being opened, and closes it: cut short on its way it may
    hold up every other call of the connection."""
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
    """False when the channel was lost before `serve` returned."""
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
    """The queue's next message, if it has one; TimeoutError when the broker does not say."""
    async with asyncio.timeout(CALL_S):
        return await queue.get(fail=False, timeout=None)


async def close_when_cancelled(channel: AbstractChannel) -> None:
    """Closes the channel when the broker takes a consumer from it (its queue was deleted): then all begins anew."""
    closing: set[asyncio.Task[None]] = set()

    def taken(_frame: object) -> None:
        closing.add(asyncio.create_task(close(channel)))

    (await channel.get_underlay_channel()).on_consumer_cancel_callbacks.add(taken)
