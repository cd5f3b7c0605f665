"""A connection to the broker that reconnects automatically."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection
from aio_pika.exceptions import CONNECTION_EXCEPTIONS, InvalidFrameError, ProbableAuthenticationError
from yarl import URL

from shared.domain.errors import ConfigurationError, UnavailableError
from shared.runtime.telemetry import log

HEARTBEAT_S = 5
"""Heartbeat interval in seconds.

aiormq considers a connection dead after three intervals and three seconds (18 s), the broker after two intervals (10 to
15 s). A shorter interval would mistake a busy machine for a dead one.
"""
CONNECT_S = 5.0
FIRST_RETRY_S, LAST_RETRY_S = 0.1, 2.0
CLOSE_S = 2.0
RETRY_AFTER_S = 2.0
"""Retry delay in seconds that callers receive while the broker is unreachable."""
AWAY = "the message broker does not answer; ask again in a moment"
FULL = "the message broker's disk or memory is full; ask again in a moment"
REFUSALS = 2
"""Consecutive rejections before a rejection is final: a broker that shuts down closes connections in the same way."""
GONE = (*CONNECTION_EXCEPTIONS, TimeoutError)
"""Errors that aio-pika raises when a channel or its connection is lost."""

_log = log("bus")


class Link:
    """One connection, reopened with growing pauses whenever it is lost."""

    def __init__(self, url: str, purpose: str) -> None:
        """`url`: amqp[s]://user:password@host:port/vhost, with aiormq's options (cafile …) as its query."""
        try:
            self._url = URL(url).update_query(heartbeat=HEARTBEAT_S)
        except ValueError:  # the URL may hold a password, so neither the URL nor its error is quoted
            raise ConfigurationError("bus_url: must be a URL like amqp://user:password@host:port/vhost") from None
        self._purpose = purpose
        self._connection: AbstractConnection | None = None
        self._up = asyncio.Event()
        self._error: BaseException | None = None
        self._refusals, self._refused = 0, ""
        self._was_up = False
        self._keeping = asyncio.create_task(self._keep(), name=f"amqp {purpose}")
        self.place = f"{self._url.host}:{self._url.port or 5672}"

    @property
    def up(self) -> bool:
        return self._up.is_set()

    @property
    def full(self) -> str:
        """Why the broker blocks this connection, which has published; empty if it does not."""
        transport = self._connection.transport if self._connection and self.up else None
        if transport is None or _at_once(transport.connection.ready()):
            return ""
        return f"the broker at {self.place} takes no messages, because its disk or memory is full"

    @property
    def server_version(self) -> tuple[int, ...]:
        """Version of the connected broker; empty while disconnected."""
        transport = self._connection.transport if self._connection else None
        properties = (transport.connection.server_properties or {}) if transport else {}
        numbers = str(properties.get("version", "")).split("-")[0].split(".")
        return tuple(int(part) for part in numbers if part.isdecimal())

    async def _keep(self) -> None:
        wait_s = FIRST_RETRY_S
        while True:
            try:
                connection = await aio_pika.connect(
                    self._url, timeout=CONNECT_S, client_properties={"connection_name": f"afterimage {self._purpose}"}
                )
            except GONE as error:
                self._error = error
                self._refused = self._refusal(error)
                self._refusals = self._refusals + 1 if self._refused else 0
                _log.warning("broker_away", broker=self.place, error=repr(error), again_in_s=wait_s)
                await asyncio.sleep(wait_s * random.uniform(0.7, 1.3))
                wait_s = min(2 * wait_s, LAST_RETRY_S)
                continue
            wait_s = FIRST_RETRY_S
            self._connection, self._error = connection, None
            self._refusals, self._was_up = 0, True
            self._up.set()
            try:
                await _lost(connection)
            finally:
                self._up.clear()
            _log.warning("broker_lost", broker=self.place, purpose=self._purpose)
            await close(connection)

    async def ready(self, within_s: float | None) -> AbstractConnection:
        """Return the open connection; raise UnavailableError if there is none within `within_s`.

        Raise ConfigurationError if the broker rejects the first connection. A broker that accepted this process before
        and now rejects it counts as unreachable, because an operator may be restoring its users; the link keeps
        retrying.
        """
        try:
            async with asyncio.timeout(within_s):
                while self._connection is None or not self._up.is_set():
                    if self._refusals >= REFUSALS and not self._was_up and within_s is not None:
                        raise ConfigurationError(
                            f"bus_url: the broker at {self.place} refuses {self._refused}; "
                            "correct bus_url or the broker's permissions"
                        )
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.5):
                            await self._up.wait()
        except TimeoutError:
            raise self.unavailable(self._error) from self._error
        return self._connection

    def _refusal(self, error: BaseException) -> str:
        """Return the subject of the broker's rejection; empty if the error is no rejection."""
        if isinstance(error, ProbableAuthenticationError):
            return "this user or password"
        # aiormq reports the Close that answers Open as an unexpected frame; NOT_ALLOWED concerns only the virtual host
        if isinstance(error, InvalidFrameError) and "OpenOk" in str(error) and "Connection.Close" in str(error):
            vhost = unquote(self._url.raw_path.removeprefix("/")) or "/"
            return f"the virtual host {vhost!r} (missing, or not permitted to this user)"
        return ""

    async def channel(self, within_s: float | None = None, *, confirms: bool = False) -> AbstractChannel:
        """Open a new channel; wait for the connection as `ready` does."""
        connection = await self.ready(within_s)
        return await connection.channel(publisher_confirms=confirms, on_return_raises=confirms)

    def unavailable(self, error: BaseException | None) -> UnavailableError:
        if full := self.full:
            return UnavailableError(full, retry_after_s=RETRY_AFTER_S, outside=FULL)
        said = f"the broker at {self.place} does not answer" + (f" ({error!r})" if error is not None else "")
        return UnavailableError(said, retry_after_s=RETRY_AFTER_S, outside=AWAY)

    async def close(self) -> None:
        await ended(self._keeping)
        if self._connection is not None:
            await close(self._connection)


async def _lost(connection: AbstractConnection) -> None:
    """Return when the connection is lost. aio-pika's `closed()` reports only a close by this side."""
    gone = asyncio.Event()

    def closed(*_: object) -> None:
        gone.set()

    connection.close_callbacks.add(closed)
    if connection.transport is not None and not connection.transport.connection.is_closed:
        await gone.wait()


def _at_once(ready: Coroutine[Any, Any, None]) -> bool:
    """Return whether the coroutine would return without waiting. It is not continued."""
    try:
        ready.send(None)
    except StopIteration:
        return True
    finally:
        ready.close()
    return False


async def close(closing: AbstractConnection | AbstractChannel) -> None:
    """Close a connection or channel. Unacknowledged deliveries of a channel return to their queues."""
    with suppress(*GONE):
        async with asyncio.timeout(CLOSE_S):
            await closing.close()


async def ended(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks until they are done: before Python 3.12, `wait_for`, which aiormq uses, may lose a cancellation."""
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=1.0)
