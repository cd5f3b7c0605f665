"""PostgreSQL through asyncpg: each operation in a transaction of its own, from a pool."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util import greenlet_spawn

from shared.catalog.database import AWAY, Operation, P, R, explain, one
from shared.catalog.prepared import DriverError
from shared.errors import ConfigurationError, UnavailableError

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
        return engine

    async def _run(
        self,
        engine: AsyncEngine,
        operation: Callable[..., R],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        commits: bool = False,
    ) -> R:
        """`commits`: the operation is its own commit."""
        for left in reversed(range(TRIES)):
            tried = _Try(commits)
            try:
                # all of it in one greenlet: asked for one by one, its parts take a third of a statement's time
                answer: R = await greenlet_spawn(_once, engine.sync_engine, tried, operation, args, kwargs)
                return answer
            except (sa.exc.DBAPIError, DriverError) as error:
                # a commit that got no answer may have happened: whoever asked must look, not we write it twice
                lost = error.connection_invalidated and not tried.committing
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

    async def write(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(self._durable, operation, args, kwargs)

    async def write_statement(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(self._autocommit, operation, args, kwargs, commits=True)

    async def write_lazily(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(self._lazy, operation, args, kwargs)

    async def write_row(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.write_lazily(operation, *args, **kwargs)

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(self._autocommit, operation, args, kwargs)

    async def read_row(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.read(operation, *args, **kwargs)

    async def ping(self) -> None:
        await self._run(self._asking, one, (), {})

    async def close(self) -> None:
        for engine in (self._durable, self._lazy, self._asking):
            await engine.dispose()


def _send_no_longer(connection: Any, _record: object) -> None:
    option, made = getattr(socket, "TCP_USER_TIMEOUT", None), connection.driver_connection
    ours = made._transport.get_extra_info("socket")
    if option is not None and ours.family in (socket.AF_INET, socket.AF_INET6):
        ours.setsockopt(socket.IPPROTO_TCP, option, int(UNACKED_S * 1000))


@dataclass
class _Try:
    committing: bool
    """Whether what it changes may stand although no answer came."""


def _once(
    engine: sa.Engine, tried: _Try, operation: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> R:
    with _alive(engine) as connection:
        value = operation(connection, *args, **kwargs)
        tried.committing = True
        connection.commit()
        return value


@contextmanager
def _alive(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection that is not known to be dead: a statement that commits itself cannot be run again when its answer
    is lost, so it is not sent where no answer can come."""
    while True:
        with engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            if not driver.is_closed():
                yield connection
                return
            connection.invalidate()


def _pool_size(url: sa.URL) -> int:
    wish = str(url.query.get("pool", POOL))
    if not wish.isdecimal() or not 2 <= int(wish) <= 1000:
        raise ConfigurationError(f"catalog_url: pool must be 2 to 1000 connections, not {wish!r}")
    return int(wish)
