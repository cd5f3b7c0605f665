"""PostgreSQL through asyncpg: each operation in a transaction of its own, from a pool."""

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
"""A transaction that the server gave up on (deadlock, serialisation), or whose connection turned out to be dead before
its commit was sent, is run again this often."""
POOL = 10
"""Connections of one process at most, unless its URL says otherwise."""
CONNECT_S, COMMAND_S, POOL_S = 5.0, 30.0, 10.0
"""Limits of connecting, of one statement, and of waiting for a free connection."""
UNACKED_S = 5.0
"""What the server's machine does not acknowledge for so long is sent no more (Linux): else a claim that was given up
arrives when a network that was cut is back, long after anybody looked for it."""
_SESSION = {
    "application_name": "afterimage",
    "lock_timeout": "10s",
    # a client that vanished in the middle of a transaction must not hold its rows for hours
    "idle_in_transaction_session_timeout": "30s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "jit": "off",  # compiling costs more than our statements take
}
_AGAIN = ("40001", "40P01")


class PostgresqlDatabase:
    """READ COMMITTED, where an UPDATE that waited for a row looks at it again.

    A read needs no transaction there, since each statement sees what is committed when it starts; so it spares the
    two round trips, as does a write that is one statement. What can be rebuilt commits on connections of its own, on
    which synchronous_commit is off.
    `?pool=N` in the URL is how many connections this process opens at most, of both kinds together (10); where it is
    asked whether the server is there, one more.
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
                pool_size=pool,  # opened as they are needed
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
        """`commits`: the operation is its own commit."""
        committing = commits
        """Whether what it changes may stand although no answer came."""

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
                # all of it in one greenlet: by AsyncConnection.run_sync a request's five take 14 % more processor time
                answer: R = await greenlet_spawn(once)
                return answer
            except (sa.exc.DBAPIError, DriverError) as error:
                # a commit that got no answer may have happened: whoever asked must look, not we write it twice
                lost = error.connection_invalidated and not committing
                if left and (lost or getattr(error.orig, "sqlstate", None) in _AGAIN):
                    continue
                raise explain(error, self._where) from error
            except sa.exc.TimeoutError as error:
                said = f"{self._where}: every connection was busy for {POOL_S:g} s"
                raise UnavailableError(said, retry_after_s=1.0, outside=AWAY) from error
            except OSError as error:  # TimeoutError is one
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
    """Let the pool replace a connection that is known to be dead: a statement that commits itself cannot be run again
    when its answer is lost, so it is not sent where no answer can come."""
    if connection.driver_connection.is_closed():
        raise sa.exc.DisconnectionError


def _pool_size(url: sa.URL) -> int:
    wish = str(url.query.get("pool", POOL))
    if not wish.isdecimal() or not 2 <= int(wish) <= 1000:
        raise ConfigurationError(f"catalog_url: pool must be 2 to 1000 connections, not {wish!r}")
    return int(wish)
