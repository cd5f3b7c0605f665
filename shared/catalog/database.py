"""The narrow waist of the catalog: a function over a connection, run in one transaction of SQLite or PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import sqlalchemy as sa

from shared.catalog.prepared import DriverError
from shared.errors import AfterimageError, ConfigurationError, StorageFullError, UnavailableError

P = ParamSpec("P")
R = TypeVar("R")
Operation = Callable[Concatenate[sa.Connection, P], R]
"""A plain function `operation(connection, *args)`, the same for both databases."""

RETRY_AFTER_S = 30.0
ONE = sa.select(sa.literal(1))
AWAY = "the catalog does not answer; ask again in a moment"
PASSING = ("08", "25P03", "40", "53", "55P03", "57")
"""PostgreSQL's states that pass: connection lost, idle too long, lost to another transaction, out of something, waited
too long for a lock, starting up or shutting down."""
REFUSED = ("28", "3D")
"""… and those that a person must mend: this user or password, no such database."""


class Database(Protocol):
    process_local: bool

    async def write(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """In one transaction, on disk when this returns."""
        ...

    async def write_statement(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """`write` of an operation whose only change is one statement; a server runs that without a transaction around
        it, in one round trip, and never again by itself once it was sent."""
        ...

    async def write_lazily(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """In one transaction that a power cut may undo, and on a server its being killed; never the killing of this
        process: for what can be rebuilt, or drawn again."""
        ...

    async def write_row(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """`write_lazily` of a row or two: less work than handing it to another thread would be."""
        ...

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """In one transaction, over what is committed."""
        ...

    async def read_row(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """`read` of a row or two by their keys: less work than handing it to another thread would be."""
        ...

    async def ping(self) -> None:
        """Returns when the database answers; on a server over a connection of its own, so that no work, however much
        there is, is taken for a server that is away."""
        ...

    async def close(self) -> None: ...


def one(connection: sa.Connection) -> None:
    """What is asked where only the answer counts."""
    connection.execute(ONE)


def explain(error: sa.exc.DBAPIError | DriverError | sqlite3.Error, where: str) -> AfterimageError:
    """The driver's error in our words."""
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
