"""A connection to the broker that comes back."""

from __future__ import annotations

import asyncio
import random
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
"""aiormq takes a link for dead after three of these and three seconds (18 s), the broker after two (10 to 15 s);
shorter ones take a busy machine for a dead one."""
CONNECT_S = 5.0
FIRST_RETRY_S, LAST_RETRY_S = 0.1, 2.0
CLOSE_S = 2.0
RETRY_AFTER_S = 2.0
"""What a caller is told while the broker is away."""
AWAY = "the message broker does not answer; ask again in a moment"
REFUSALS = 2
"""So often in a row a broker says no before it is believed: one that is ending breaks off like that as well."""
GONE = (*CONNECTION_EXCEPTIONS, TimeoutError)
"""What aio-pika raises when a channel or the connection under it is lost."""

_log = log("bus")


class Link:
    """One connection; opened again, with growing pauses, whenever it is lost."""

    def __init__(self, url: str, purpose: str) -> None:
        """`url`: amqp[s]://user:password@host:port/vhost, with aiormq's options (cafile …) as its query."""
        try:
            self._url = URL(url).update_query(heartbeat=HEARTBEAT_S)
        except ValueError:  # the URL may hold a password: neither it nor its error is quoted
            raise ConfigurationError("bus_url: is not a URL; use amqp://user:password@host:port/vhost") from None
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
    def server_version(self) -> tuple[int, ...]:
        """Of the broker it is connected to; empty while it is not."""
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
        """The open connection; UnavailableError when there is none within `within_s`.

        ConfigurationError when the broker refuses us from the start. One that took us before and now does not is away:
        its users are being restored, say, and the link goes on trying.
        """
        try:
            async with asyncio.timeout(within_s):
                while self._connection is None or not self._up.is_set():
                    if self._refusals >= REFUSALS and not self._was_up and within_s is not None:
                        raise ConfigurationError(f"bus_url: the broker at {self.place} refuses {self._refused}")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.5):
                            await self._up.wait()
        except TimeoutError:
            raise self.unavailable(self._error) from self._error
        return self._connection

    def _refusal(self, error: BaseException) -> str:
        """What the broker said no to; empty where it did not say no."""
        if isinstance(error, ProbableAuthenticationError):
            return "this user or password"
        # aiormq takes the Close that answers Open for a frame out of place; NOT_ALLOWED is of the virtual host alone
        if isinstance(error, InvalidFrameError) and "OpenOk" in str(error) and "Connection.Close" in str(error):
            vhost = unquote(self._url.raw_path.removeprefix("/")) or "/"
            return f"the virtual host {vhost!r}: it is not there, or not this user's"
        return ""

    async def channel(self, within_s: float | None = None, *, confirms: bool = False) -> AbstractChannel:
        """A new channel; waits for the connection as `ready` does."""
        connection = await self.ready(within_s)
        return await connection.channel(publisher_confirms=confirms, on_return_raises=confirms)

    def unavailable(self, error: BaseException | None) -> UnavailableError:
        said = f"the broker at {self.place} does not answer" + (f" ({error!r})" if error is not None else "")
        return UnavailableError(said, retry_after_s=RETRY_AFTER_S, outside=AWAY)

    async def close(self) -> None:
        await ended(self._keeping)
        if self._connection is not None:
            await close(self._connection)


async def _lost(connection: AbstractConnection) -> None:
    """Returns when the connection is no more: `closed()` knows only of our own closing."""
    gone = asyncio.Event()

    def closed(*_: object) -> None:
        gone.set()

    connection.close_callbacks.add(closed)
    if connection.transport is not None and not connection.transport.connection.is_closed:
        await gone.wait()


async def close(closing: AbstractConnection | AbstractChannel) -> None:
    """Of a channel: what was delivered on it and not acknowledged goes back to its queues."""
    with suppress(*GONE):
        async with asyncio.timeout(CLOSE_S):
            await closing.close()


async def ended(*tasks: asyncio.Future[Any]) -> None:
    """Cancels until they are done: `wait_for`, which aiormq uses, may lose a cancellation before Python 3.12."""
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=1.0)
