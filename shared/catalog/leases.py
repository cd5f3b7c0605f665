"""Leases by name: what only one replica may do, for as long as it says that it is alive."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from shared.catalog.around import DatabaseAround, Run
from shared.catalog.database import Database, Operation, P, R
from shared.catalog.tables import leases, now_s
from shared.errors import UnavailableError

_NOW: Any = now_s()
c = leases.c


@cache
def _taking(dialect: str) -> Any:
    """One statement, so that two replicas meet on the row: whoever comes second finds it taken."""
    insert: Any = postgresql.insert if dialect == "postgresql" else sqlite.insert
    statement = insert(leases).values(until=_NOW + sa.bindparam("lease_s", type_=sa.Double))
    new = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=["name"],
        set_={"holder": new.holder, "until": new.until},
        where=sa.or_(c.holder == new.holder, c.until < _NOW),
    ).returning(c.name)


def _take(connection: sa.Connection, name: str, holder: str, lease_s: float) -> bool:
    wished = {"name": name, "holder": holder, "lease_s": lease_s}
    return connection.execute(_taking(connection.dialect.name), wished).first() is not None


def _give_up(connection: sa.Connection, name: str, holder: str) -> None:
    connection.execute(sa.delete(leases).where(c.name == name, c.holder == holder))


_HELD = (
    sa.select(c.name)
    .where(c.name == sa.bindparam("of_name"), c.holder == sa.bindparam("by_holder"), c.until > _NOW)
    .with_for_update(read=True)  # it cannot change hands before this transaction has ended
)


def _fenced(
    connection: sa.Connection, name: str, holder: str, operation: Callable[..., R], args: Any, kwargs: Any
) -> R:
    if connection.execute(_HELD, {"of_name": name, "by_holder": holder}).first() is None:
        raise UnavailableError(f"lease {name!r}: {holder} does not hold it any more", retry_after_s=1.0)
    return operation(connection, *args, **kwargs)


class FencedDatabase(DatabaseAround):
    """Writes only what a holder of a lease may write: each transaction begins by looking, and nobody takes the lease
    over before it ends. UnavailableError when it is not held any more."""

    def __init__(self, database: Database, name: str, holder: str) -> None:
        super().__init__(database)
        self._name, self._holder = name, holder

    async def _written(self, run: Run, operation: Callable[..., R], args: Any, kwargs: Any) -> R:
        return await self._asked(run, _fenced, (self._name, self._holder, operation, args, kwargs), {})

    async def write_statement(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.write(operation, *args, **kwargs)  # two statements, with the look


class Leases:
    """The leases of a catalog; the clock is the database's."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def take(self, name: str, holder: str, lease_s: float) -> bool:
        """Takes or renews it for `lease_s` seconds; False while another holder's is alive."""
        return await self._database.write(_take, name, holder, lease_s)

    async def give_up(self, name: str, holder: str) -> None:
        """Another may take it at once; nothing happens when it is not this holder's."""
        await self._database.write(_give_up, name, holder)
