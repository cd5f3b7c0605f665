"""Statements that every picture waits for, run on SQLite by the driver alone.

SQLAlchemy compiles each once. What it does around every run of one is most of a row read by its key: 24 of 33 µs, and
310 of 470 where others have filled the processor's caches meanwhile, as they have when a request comes after a pause.
On a server the way there is what costs, and SQLAlchemy runs them.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
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
        self._row: Any = None

    def first(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> Any:
        """The first row that it gives, with the columns as attributes; None of none."""
        if connection.dialect.name != "sqlite":
            return connection.execute(self.statement, parameters).first()
        cursor = self._run(connection, parameters)
        rows = cursor.fetchall()  # all: a commit waits for whoever has more to give
        if not rows:
            return None
        if self._row is None:
            self._row = _row_kind("Row", [column[0] for column in cursor.description])
        return self._row._make(rows[0])

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
        names = tuple(parameters)
        if (found := self._compiled.get(names)) is None:
            made = self.statement.compile(dialect=connection.dialect, column_keys=list(names))
            found = self._compiled[names] = _Compiled(str(made), tuple(made.positiontup), dict(made.params))
        return found


def _driver(connection: sa.Connection) -> Any:
    return connection.connection.driver_connection
