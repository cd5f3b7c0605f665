"""The catalog's narrow database interface: functions over a connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Protocol, TypeVar, TypeVarTuple

import sqlalchemy as sa

from shared.catalog.engines.prepared import DriverError
from shared.domain.errors import AfterimageError, ConfigurationError, StorageFullError, UnavailableError

T = TypeVar("T")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")

CHUNK = 500
"""Rows or bound values per statement: far below every driver's limit."""
RETRY_AFTER_S = 30.0
ONE = sa.select(sa.literal(1))
AWAY = "the catalog does not answer; ask again in a moment"
PASSING = ("08", "25P03", "40", "53", "55P03", "57")
"""PostgreSQL error classes that are temporary.

Connection lost, idle too long, conflict with another transaction, out of a resource, lock timeout, server starting up
or shutting down.
"""
LACKING = ("42501",)
"""PostgreSQL's code for a user without the right to do this."""
REFUSED = ("28", "3D")
"""PostgreSQL error classes that need an operator: user or password rejected, no such database."""


class Database(Protocol):
    """Runs operations: plain functions `operation(connection, *args)`, the same for both databases.

    `row` marks the few operations that every request waits for: accept, claim, finish and some reads. Without its
    shortcuts, the first three and two reads take 32 % more processor time on SQLite (threads). On PostgreSQL they take
    54 to 70 % more (BEGIN, COMMIT, a second statement). That is about 4 % of a request on either database.
    """

    process_local: bool

    async def read(self, operation: Callable[[sa.Connection, *Ts], R], *args: *Ts, row: bool = False) -> R:
        """Run an operation on committed data. On PostgreSQL each of its statements sees what is committed when it
        starts.

        `row`: the operation reads a few rows by key. SQLite then runs it on the event loop, and also without a
        snapshot.
        """
        ...

    async def write(
        self, operation: Callable[[sa.Connection, *Ts], R], *args: *Ts, durable: bool = True, row: bool = False
    ) -> R:
        """Run an operation in one transaction; when this returns, the transaction is on disk.

        `durable`: False for data that can be rebuilt or generated again. A power cut or a kill of the server may undo
        such a write; a kill of this process never does.

        `row`: the operation's only change is one statement on a row or two. SQLite runs it on the event loop unless it
        is durable. A server runs the statement without a transaction, in one round trip, and always durably. The
        statement is never repeated automatically once sent.
        """
        ...

    async def ping(self) -> None:
        """Return when the database answers.

        A server is pinged over a separate connection, so that a busy pool is not mistaken for an unreachable server.
        """
        ...

    async def close(self) -> None: ...


def one(connection: sa.Connection) -> None:
    """Run a trivial query."""
    connection.execute(ONE)


def chunks(values: Iterable[T]) -> Iterator[list[T]]:
    """Split the values into lists of at most CHUNK."""
    rest = list(values)
    return (rest[at : at + CHUNK] for at in range(0, len(rest), CHUNK))


def among(connection: sa.Connection, column: Any, values: Collection[str], *where: Any) -> set[str]:
    """Return those of the values that this column holds in a row that fits `where`."""
    found: set[str] = set()
    for some in chunks(values):
        found.update(connection.execute(sa.select(column).where(column.in_(some), *where)).scalars())
    return found


def explain(error: sa.exc.DBAPIError | DriverError | sqlite3.Error, where: str) -> AfterimageError:
    """Convert the driver's error into an AfterimageError."""
    cause = error if isinstance(error, sqlite3.Error) else error.orig
    said = str(cause)
    state = getattr(cause, "sqlstate", None)
    if "disk is full" in said or state == "53100":
        full = "the catalog's disk is full"
        return StorageFullError(f"{where}: the disk is full ({said})", retry_after_s=RETRY_AFTER_S, outside=full)
    if "disk I/O error" in said or "readonly database" in said:
        broken = "the catalog's disk cannot be written: it fails, or became read-only"
        return UnavailableError(f"{where}: {broken} ({said})", retry_after_s=RETRY_AFTER_S, outside=broken)
    if "not a database" in said or "malformed" in said:
        return ConfigurationError(
            f"catalog_url: {where} must be an undamaged catalog ({said}); restore it from a backup or move it away"
        )
    if str(state or "").startswith(REFUSED):
        return ConfigurationError(
            f"catalog_url: {where} refused the connection ({said}); check user, password and database name",
            outside="the catalog failed; its error is in the log",
        )
    if state in LACKING:
        return ConfigurationError(
            f"catalog_url: {where}: {said}; run `afterimage credentials` of this version, or use an administrator",
            outside="the catalog failed; its error is in the log",
        )
    if "unable to open" in said:
        return ConfigurationError(f"catalog_url: {where} cannot be opened ({said}); check the path and its permissions")
    gone = not isinstance(error, sqlite3.Error) and error.connection_invalidated
    passing = isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError | sqlite3.OperationalError)
    if gone or passing or str(state or "").startswith(PASSING):
        return UnavailableError(f"{where}: {said}", retry_after_s=1.0, outside=AWAY)
    return AfterimageError(f"{where}: {said}", outside="the catalog failed; its error is in the log")
