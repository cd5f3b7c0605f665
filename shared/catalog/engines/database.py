"""The narrow waist of the catalog: a function over a connection, run in one transaction of SQLite or PostgreSQL."""

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
"""Rows, or bound values, of one statement: far below every driver's limit."""
RETRY_AFTER_S = 30.0
ONE = sa.select(sa.literal(1))
AWAY = "the catalog does not answer; ask again in a moment"
PASSING = ("08", "25P03", "40", "53", "55P03", "57")
"""PostgreSQL's states that pass: connection lost, idle too long, lost to another transaction, out of something, waited
too long for a lock, starting up or shutting down."""
REFUSED = ("28", "3D")
"""… and those that a person must mend: this user or password, no such database."""


class Database(Protocol):
    """Runs operations: plain functions `operation(connection, *args)`, the same for both databases.

    `row` marks the few operations on one job that every request waits for: accept, claim, finish and two reads. Without
    its shortcuts those five take 32 % more processor time on SQLite (threads) and 54 to 70 % more on PostgreSQL (BEGIN,
    COMMIT, a second statement); that is about 4 % of a request either way.
    """

    process_local: bool

    async def read(self, operation: Callable[[sa.Connection, *Ts], R], *args: *Ts, row: bool = False) -> R:
        """Run an operation over what is committed, in one transaction.

        row: it reads a row or two by their keys. SQLite does so on the event loop.
        """
        ...

    async def write(
        self, operation: Callable[[sa.Connection, *Ts], R], *args: *Ts, durable: bool = True, row: bool = False
    ) -> R:
        """Run an operation in one transaction, on disk when this returns.

        durable: False for what can be rebuilt, or generated again. A power cut may undo the write, and so may a kill of
        the server; a kill of this process never does.
        row: its only change is one statement on a row or two. SQLite runs it on the event loop unless it is durable. A
        server runs the statement without a transaction around it, in one round trip, always durably, and never again
        by itself once it was sent.
        """
        ...

    async def ping(self) -> None:
        """Return when the database answers; on a server over a connection of its own, so that no work, however much
        there is, is taken for a server that is away."""
        ...

    async def close(self) -> None: ...


def one(connection: sa.Connection) -> None:
    """Ask for nothing but an answer."""
    connection.execute(ONE)


def chunks(values: Iterable[T]) -> Iterator[list[T]]:
    """The values in lists of at most CHUNK."""
    rest = list(values)
    return (rest[at : at + CHUNK] for at in range(0, len(rest), CHUNK))


def among(connection: sa.Connection, column: Any, values: Collection[str], *where: Any) -> set[str]:
    """Those of the values that a row which fits `where` holds in this column."""
    found: set[str] = set()
    for some in chunks(values):
        found.update(connection.execute(sa.select(column).where(column.in_(some), *where)).scalars())
    return found


def explain(error: sa.exc.DBAPIError | DriverError | sqlite3.Error, where: str) -> AfterimageError:
    """The driver's error as one of ours."""
    cause = error if isinstance(error, sqlite3.Error) else error.orig
    said = str(cause)
    state = getattr(cause, "sqlstate", None)
    if "disk is full" in said or state == "53100":
        full = "the catalog's disk is full"
        return StorageFullError(f"{where}: the disk is full ({said})", retry_after_s=RETRY_AFTER_S, outside=full)
    if "not a database" in said or "malformed" in said:
        return ConfigurationError(
            f"catalog_url: {where} is no catalog or is damaged ({said}); restore it or move it away"
        )
    if str(state or "").startswith(REFUSED):
        return ConfigurationError(
            f"catalog_url: {where} refuses us ({said})", outside="the catalog failed; its error is in the log"
        )
    if "unable to open" in said:
        return ConfigurationError(f"catalog_url: {where} cannot be opened ({said}); check the path and its permissions")
    gone = not isinstance(error, sqlite3.Error) and error.connection_invalidated
    passing = isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError | sqlite3.OperationalError)
    if gone or passing or str(state or "").startswith(PASSING):
        return UnavailableError(f"{where}: {said}", retry_after_s=1.0, outside=AWAY)
    return AfterimageError(f"{where}: {said}", outside="the catalog failed; its error is in the log")
