"""PostgreSQL through asyncpg: each operation runs in its own transaction, on a pooled connection."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util import greenlet_spawn

from shared.catalog.engines.database import AWAY, R, Ts, explain, one
from shared.catalog.engines.prepared import DriverError
from shared.domain.errors import ConfigurationError, UnavailableError

TRIES = 3
"""Attempts of a transaction that the server aborted (deadlock, serialisation) or whose connection was dead.

A dead connection counts only if the commit was not yet sent.
"""
POOL = 10
"""Largest number of connections of one process, unless its URL sets another."""
CONNECT_S, COMMAND_S, POOL_S = 5.0, 30.0, 10.0
"""Timeouts of connecting, of one statement, and of waiting for a free connection."""
UNACKED_S = 5.0
"""Seconds after which unacknowledged data is no longer resent (TCP_USER_TIMEOUT, Linux).

Otherwise a claim that was given up could arrive when a cut network is back, long after its caller checked.
"""
_SESSION = {
    "application_name": "afterimage",
    "lock_timeout": "10s",
    # a client that vanished in the middle of a transaction must not hold its rows for hours
    "idle_in_transaction_session_timeout": "30s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "jit": "off",  # compiling costs more than these statements take
}
_AGAIN = ("40001", "40P01")


class PostgresqlDatabase:
    """Transactions at READ COMMITTED, where an UPDATE that waited for a row re-evaluates the row.

    A read needs no transaction at this level, because each statement sees the data committed when it starts. Reads and
    single-statement writes therefore skip two round trips. Data that can be rebuilt commits on separate connections
    with synchronous_commit off.

    `?pool=N` in the URL limits this process's connections, both kinds together (default 10). `ping` uses one more.
    """

    process_local = False

    def __init__(self, url: sa.URL) -> None:
        self._where = url.render_as_string(hide_password=True)
        pool = _pool_size(url)
        url = url.difference_update_query(["pool"])
        lazy = max(pool * 2 // 5, 1)
        self._durable = self._engine(url, pool - lazy, "on")
        self._lazy = self._engine(url, lazy, "off")
        self._asking = self._engine(url, 1, "on")
        self._autocommit = self._durable.execution_options(isolation_level="AUTOCOMMIT")

    def _engine(self, url: sa.URL, pool: int, synchronous_commit: str) -> AsyncEngine:
        session = {**_SESSION, "synchronous_commit": synchronous_commit}
        try:
            engine = create_async_engine(
                url,
                hide_parameters=True,  # an error's text must not have a request's prompt
                pool_size=pool,  # opened on demand
                max_overflow=0,
                pool_timeout=POOL_S,
                pool_use_lifo=True,
                connect_args={"timeout": CONNECT_S, "command_timeout": COMMAND_S, "server_settings": session},
            )
        except ImportError as error:
            raise ConfigurationError(
                f"catalog_url: {url.drivername} needs a driver that is missing ({error}); install afterimage[cluster]"
            ) from error
        sa.event.listen(engine.sync_engine, "connect", _send_no_longer)
        sa.event.listen(engine.sync_engine, "checkout", _check_alive)
        return engine

    async def _run(
        self,
        engine: AsyncEngine,
        operation: Callable[[sa.Connection, *Ts], R],
        *args: *Ts,
        commits: bool = False,
    ) -> R:
        """Run an operation on a connection of this engine; `commits` means that the operation commits by itself."""
        committing = commits
        """True when the change may persist although no reply came."""

        def once() -> R:
            nonlocal committing
            with engine.sync_engine.connect() as connection:
                value = operation(connection, *args)
                committing = True
                connection.commit()
                return value

        for left in reversed(range(TRIES)):
            committing = commits
            try:
                # all in one greenlet: with AsyncConnection.run_sync, a request's five operations take 14 % more
                # processor time
                answer: R = await greenlet_spawn(once)
                return answer
            except (sa.exc.DBAPIError, DriverError) as error:
                # a commit without a reply may have happened: the caller must check, and this code must not write twice
                lost = error.connection_invalidated and not committing
                if left and (lost or getattr(error.orig, "sqlstate", None) in _AGAIN):
                    continue
                raise explain(error, self._where) from error
            except sa.exc.TimeoutError as error:
                said = f"{self._where}: all connections were busy for {POOL_S:g} s; raise pool=N in catalog_url"
                raise UnavailableError(said, retry_after_s=1.0, outside=AWAY) from error
            except OSError as error:  # includes TimeoutError
                said = str(error) or f"no answer within {COMMAND_S:g} s"
                raise UnavailableError(f"{self._where}: {said}", retry_after_s=1.0, outside=AWAY) from error
        raise AssertionError("unreachable: the last try returns or raises")

    async def read(self, operation: Callable[[sa.Connection, *Ts], R], *args: *Ts, row: bool = False) -> R:
        return await self._run(self._autocommit, operation, *args)

    async def write(
        self, operation: Callable[[sa.Connection, *Ts], R], *args: *Ts, durable: bool = True, row: bool = False
    ) -> R:
        if row:
            return await self._run(self._autocommit, operation, *args, commits=True)
        return await self._run(self._durable if durable else self._lazy, operation, *args)

    async def ping(self) -> None:
        await self._run(self._asking, one)

    async def close(self) -> None:
        for engine in (self._durable, self._lazy, self._asking):
            await engine.dispose()


def _send_no_longer(connection: Any, _record: object) -> None:
    option, made = getattr(socket, "TCP_USER_TIMEOUT", None), connection.driver_connection
    ours = made._transport.get_extra_info("socket")
    if option is not None and ours.family in (socket.AF_INET, socket.AF_INET6):
        ours.setsockopt(socket.IPPROTO_TCP, option, int(UNACKED_S * 1000))


def _check_alive(connection: Any, _record: object, _proxy: object) -> None:
    """Let the pool replace a connection that is known to be dead.

    A statement that commits by itself cannot be repeated when its reply is lost. Therefore it must not be sent on a
    dead connection.
    """
    if connection.driver_connection.is_closed():
        raise sa.exc.DisconnectionError


def _pool_size(url: sa.URL) -> int:
    wish = str(url.query.get("pool", POOL))
    if not wish.isdecimal() or not 2 <= int(wish) <= 1000:
        raise ConfigurationError(f"catalog_url: pool must be 2 to 1000 connections (got {wish!r})")
    return int(wish)
