"""Leases by name: what only one replica may do, for as long as it says that it is alive."""

from __future__ import annotations

from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from shared.catalog.database import Database
from shared.catalog.tables import leases, now_s

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
