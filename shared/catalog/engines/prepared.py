"""Statements that every image waits for, executed by the driver alone.

SQLAlchemy compiles each statement once. Its work around every execution is most of the cost of reading a row by key.
With SQLAlchemy, a request's accept, claim, finish and two reads take 31 % more processor time on SQLite (23 % with
exec_driver_sql). On PostgreSQL they take 40 % more (31 %). That is about 4 % of an embedded request, more after a
pause, and 3 % of a cluster's request.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

_row_kind: Any = namedtuple
"""Untyped, because the field names are known only at run time."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    """The SQL for one dialect."""

    sql: str
    order: tuple[str, ...]
    constants: dict[str, Any]
    """Values that the statement itself holds."""


class Prepared:
    """One statement, whose parameters have the same names at each run.

    Parameters must be values that SQLite stores unchanged: text, numbers, bytes and None. Booleans are stored, and
    returned, as 0 and 1.
    """

    def __init__(self, statement: Any) -> None:
        self.statement = statement
        self._compiled: dict[str, _Compiled] = {}
        """Compiled statements by dialect name."""
        self._row: Any = None

    def first(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> Any:
        """Return the first row, with the columns as attributes, or None."""
        rows = self.all(connection, parameters)
        return rows[0] if rows else None

    def all(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> list[Any]:
        """Return all rows, with the columns as attributes."""
        compiled = self._of(connection, parameters)
        places = [parameters[name] if name in parameters else compiled.constants[name] for name in compiled.order]
        if connection.dialect.name == "sqlite":
            cursor = connection.connection.driver_connection.execute(compiled.sql, places)  # type: ignore[union-attr]
            rows = cursor.fetchall()  # fetch all: an open cursor would block the commit
            return self._named((column[0] for column in cursor.description), rows) if rows else []
        if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
            found = connection.execute(self.statement, parameters)  # this begins the transaction
            return list(found) if found.returns_rows else []
        records = by_driver(connection, compiled.sql, places)
        return self._named(records[0].keys(), records) if records else []

    def _named(self, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> list[Any]:
        if self._row is None:
            self._row = _row_kind("Row", list(columns))
        return [self._row._make(row) for row in rows]

    def _of(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> _Compiled:
        dialect = connection.dialect
        if (found := self._compiled.get(dialect.name)) is None:
            made = self.statement.compile(dialect=dialect, column_keys=list(parameters))
            found = self._compiled[dialect.name] = _Compiled(str(made), tuple(made.positiontup), dict(made.params))
        return found


class DriverError(Exception):
    """The driver's own error, with the attributes of SQLAlchemy's error."""

    def __init__(self, orig: Exception, *, connection_invalidated: bool) -> None:
        super().__init__(str(orig))
        self.orig, self.connection_invalidated = orig, connection_invalidated


def by_driver(connection: sa.Connection, sql: str, places: Sequence[Any]) -> Any:
    """Return all rows of a statement on PostgreSQL.

    Raise DriverError, or OSError if the server did not reply. A connection without a reply is not used again.
    """
    adapted: Any = connection.connection.dbapi_connection
    try:
        return adapted.run_async(lambda driver: driver.fetch(sql, *places))
    except BaseException as error:
        gone = adapted.driver_connection.is_closed()
        # connection lost, or the caller was cancelled
        if gone or isinstance(error, OSError) or not isinstance(error, Exception):
            connection.invalidate(error)
        if isinstance(error, Exception) and not isinstance(error, OSError):
            raise DriverError(error, connection_invalidated=gone) from error
        raise
