"""Runs a function over a connection in one transaction: SQLite on a thread of its own, PostgreSQL through asyncpg.

A catalog operation is a plain function `operation(connection, *args)`. On SQLite the whole transaction is one hop to a
thread that holds the only writing connection: 0.37 ms per durable commit against 1.05 ms when every statement hops
separately through aiosqlite (measured: accept + claim + finish 1.1 ms against 3.1 ms, 2 cores).
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from shared.clock import Clock
from shared.errors import AfterimageError, ConfigurationError, StorageFullError, UnavailableError

P = ParamSpec("P")
R = TypeVar("R")
Operation = Callable[Concatenate[sa.Connection, P], R]

BUSY_TIMEOUT_S = 5.0
RETRY_AFTER_S = 30.0
TRIES = 3
"""A transaction that PostgreSQL gave up on (deadlock, serialisation) is run again this often."""


class Database(Protocol):
    process_local: bool

    async def write(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """In one transaction, on disk when this returns."""
        ...

    async def write_lazily(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """In one transaction that a power cut (never a killed process) may undo: for what can be rebuilt."""
        ...

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """In one transaction, over what is committed."""
        ...

    async def close(self) -> None: ...


def explain(error: sa.exc.DBAPIError | sqlite3.Error, where: str) -> AfterimageError:
    """The driver's error in our words."""
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    said = str(cause)
    state = getattr(cause, "sqlstate", None)
    if "disk is full" in said or state == "53100":
        return StorageFullError(f"{where}: the disk is full ({said})", retry_after_s=RETRY_AFTER_S)
    if "not a database" in said or "malformed" in said:
        return ConfigurationError(
            f"catalog_url: {where} is no catalog or is damaged ({said}); restore it or move it away"
        )
    if "unable to open" in said:
        return ConfigurationError(f"catalog_url: {where} cannot be opened ({said}); check the path and its permissions")
    if isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError | sqlite3.OperationalError):
        return UnavailableError(f"{where}: {said}", retry_after_s=1.0)
    return AfterimageError(f"{where}: {said}")


class SqliteDatabase:
    """One writing thread and one reading thread, each with its connection, over one WAL file.

    synchronous=FULL for jobs: in WAL mode NORMAL does not sync at commit, so a power cut could undo a job whose client
    was already told that it is accepted. What can be rebuilt commits under NORMAL.
    """

    process_local = True

    def __init__(self, url: sa.URL, clock: Clock) -> None:
        self._where = url.database or ":memory:"
        in_memory = url.database in (None, "", ":memory:")
        self._engine = sa.create_engine(
            url.set(drivername="sqlite"),
            poolclass=sa.StaticPool if in_memory else sa.NullPool,
            connect_args={"check_same_thread": False, "timeout": BUSY_TIMEOUT_S, "isolation_level": None},
        )

        def configure(connection: Any, _record: object) -> None:
            # isolation_level None: we say BEGIN ourselves, because the driver's own implicit one comes too late
            connection.create_function("now_s", 0, clock.now)
            for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "cache_size = -16000"):
                connection.execute(f"PRAGMA {pragma}").close()

        sa.event.listen(self._engine, "connect", configure)
        self._writer = ThreadPoolExecutor(1, "catalog-writer")
        self._reader = self._writer if in_memory else ThreadPoolExecutor(1, "catalog-reader")
        self._writing: sa.Connection | None = None
        self._reading: sa.Connection | None = None
        self._lazy = False

    def _write(self, lazily: bool, operation: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        try:
            if self._writing is None:
                self._writing = self._engine.connect()
            raw: Any = self._writing.connection.driver_connection
            if lazily is not self._lazy:
                raw.execute(f"PRAGMA synchronous = {'NORMAL' if lazily else 'FULL'}").close()
                self._lazy = lazily
            with self._writing.begin():
                raw.execute("BEGIN IMMEDIATE")
                return operation(self._writing, *args, **kwargs)
        except (sa.exc.DBAPIError, sqlite3.Error) as error:
            raise explain(error, self._where) from error

    def _read(self, operation: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        if self._reader is self._writer:
            return self._write(self._lazy, operation, args, kwargs)
        try:
            if self._reading is None:
                self._reading = self._engine.connect()
            raw: Any = self._reading.connection.driver_connection
            with self._reading.begin():
                raw.execute("BEGIN")
                return operation(self._reading, *args, **kwargs)
        except (sa.exc.DBAPIError, sqlite3.Error) as error:
            raise explain(error, self._where) from error

    async def write(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(
            self._writer, self._write, False, operation, args, kwargs
        )

    async def write_lazily(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(
            self._writer, self._write, True, operation, args, kwargs
        )

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._read, operation, args, kwargs)

    async def close(self) -> None:
        def hang_up() -> None:
            for connection in (self._reading, self._writing):
                if connection is not None:
                    connection.close()
            self._engine.dispose()

        if self._reader is not self._writer:
            await asyncio.to_thread(self._reader.shutdown)
        with suppress(RuntimeError):  # closed twice
            await asyncio.get_running_loop().run_in_executor(self._writer, hang_up)
        self._writer.shutdown()


class ServerDatabase:
    """PostgreSQL through asyncpg; READ COMMITTED, where an UPDATE that waited for a row looks at it again."""

    process_local = False

    def __init__(self, url: sa.URL) -> None:
        self._where = url.render_as_string(hide_password=True)
        try:
            self._engine = create_async_engine(url, pool_size=8, max_overflow=8, pool_pre_ping=False, pool_timeout=10.0)
        except ImportError as error:
            raise ConfigurationError(
                f"catalog_url: {url.drivername} needs a driver that is missing ({error}); install afterimage[cluster]"
            ) from error

    async def _run(self, before: str, operation: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        for left in reversed(range(TRIES)):
            try:
                async with self._engine.begin() as connection:
                    if before:
                        await connection.exec_driver_sql(before)
                    return await connection.run_sync(operation, *args, **kwargs)
            except sa.exc.DBAPIError as error:
                if left and getattr(error.orig, "sqlstate", None) in ("40001", "40P01"):
                    continue
                raise explain(error, self._where) from error
            except OSError as error:
                raise UnavailableError(f"{self._where}: {error}", retry_after_s=1.0) from error
        raise AssertionError("unreachable: the last try returns or raises")

    async def write(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run("", operation, args, kwargs)

    async def write_lazily(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run("SET LOCAL synchronous_commit = off", operation, args, kwargs)

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run("", operation, args, kwargs)

    async def close(self) -> None:
        await self._engine.dispose()


def open_database(url: str, clock: Clock) -> Database:
    """By the URL's scheme; ConfigurationError for one that no catalog speaks."""
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise ConfigurationError(f"catalog_url: {url!r} is not a database URL; use sqlite+aiosqlite:///path") from error
    match parsed.get_backend_name():
        case "sqlite":
            return SqliteDatabase(parsed, clock)
        case "postgresql":
            return ServerDatabase(parsed.set(drivername="postgresql+asyncpg"))
        case other:
            raise ConfigurationError(
                f"catalog_url: no catalog speaks {other!r}; use sqlite+aiosqlite:///path or postgresql+asyncpg://…"
            )
