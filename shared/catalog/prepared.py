"""Statements that every picture waits for, run by the driver alone.

SQLAlchemy compiles each once. What it does around every run of one is most of a row read by its key: on SQLite 24 of
33 µs, and 310 of 470 where others have filled the processor's caches meanwhile, as they have when a request comes after
a pause; on PostgreSQL, where a statement is its own transaction, 130 of 240 µs.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

_row_kind: Any = namedtuple
"""For names that are known when it runs."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    """For one set of parameters' names."""

    sql: str
    order: tuple[str, ...]
    constants: dict[str, Any]
    """Values that the statement itself holds."""

    def places(self, parameters: Mapping[str, Any]) -> list[Any]:
        return [parameters[name] if name in parameters else self.constants[name] for name in self.order]


class Prepared:
    """One statement. Parameters are what SQLite stores as it is: text, numbers, bytes, truth values (as 0 and 1, and so
    they come back) and None."""

    def __init__(self, statement: Any) -> None:
        self.statement = statement
        self._compiled: dict[tuple[str, ...], _Compiled] = {}
        """By the database's kind and the parameters' names."""
        self._row: Any = None

    def first(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> Any:
        """The first row that it gives, with the columns as attributes; None of none."""
        if connection.dialect.name == "sqlite":
            cursor = self._run(connection, parameters)
            rows = cursor.fetchall()  # all: a commit waits for whoever has more to give
            return self._named((column[0] for column in cursor.description), rows[0]) if rows else None
        if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
            return connection.execute(self.statement, parameters).first()  # which begins the transaction
        compiled = self._of(connection, parameters)
        records = by_driver(connection, compiled.sql, compiled.places(parameters))
        return self._named(records[0].keys(), records[0]) if records else None

    def _named(self, columns: Iterable[str], row: Iterable[Any]) -> Any:
        if self._row is None:
            self._row = _row_kind("Row", list(columns))
        return self._row._make(row)

    def changed(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> int:
        """How many rows it changed."""
        if connection.dialect.name != "sqlite":
            return connection.execute(self.statement, parameters).rowcount
        return int(self._run(connection, parameters).rowcount)

    def many(self, connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Once for each of these, which all have the same names."""
        if connection.dialect.name != "sqlite":
            connection.execute(self.statement, rows)
        elif rows:
            compiled = self._of(connection, rows[0])
            _driver(connection).executemany(compiled.sql, [compiled.places(row) for row in rows])

    def _run(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> Any:
        compiled = self._of(connection, parameters)
        return _driver(connection).execute(compiled.sql, compiled.places(parameters))

    def _of(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> _Compiled:
        key = (connection.dialect.name, *parameters)
        if (found := self._compiled.get(key)) is None:
            made = self.statement.compile(dialect=connection.dialect, column_keys=list(parameters))
            found = self._compiled[key] = _Compiled(str(made), tuple(made.positiontup), dict(made.params))
        return found


def _driver(connection: sa.Connection) -> Any:
    return connection.connection.driver_connection


class DriverError(Exception):
    """The driver's own error, told as SQLAlchemy tells it."""

    def __init__(self, orig: Exception, *, connection_invalidated: bool) -> None:
        super().__init__(str(orig))
        self.orig, self.connection_invalidated = orig, connection_invalidated


def by_driver(connection: sa.Connection, sql: str, places: Sequence[Any]) -> Any:
    """All rows of a statement on PostgreSQL. Raises DriverError, and OSError where nobody answered; a connection on
    which no answer came is not used again."""
    adapted: Any = connection.connection.dbapi_connection
    try:
        return adapted.run_async(lambda driver: driver.fetch(sql, *places))
    except BaseException as error:
        gone = adapted.driver_connection.is_closed()
        if gone or isinstance(error, OSError) or not isinstance(error, Exception):  # cut off, or nobody waits any more
            connection.invalidate(error)
        if isinstance(error, Exception) and not isinstance(error, OSError):
            raise DriverError(error, connection_invalidated=gone) from error
        raise
