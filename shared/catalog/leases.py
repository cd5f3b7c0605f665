"""Leases by name, for work that only one replica may do; a replica keeps a lease by renewing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from shared.catalog.engines.around import DatabaseAround
from shared.catalog.engines.database import Database, R, Ts
from shared.catalog.tables import insert, leases, now_s
from shared.domain.errors import UnavailableError

_NOW: Any = now_s()
c = leases.c
_new = insert(leases).values(until=_NOW + sa.bindparam("lease_s", type_=sa.Double))
_TAKE = _new.on_conflict_do_update(
    # one statement: two replicas conflict on the row, and the second finds the lease taken
    index_elements=["name"],
    set_={"holder": _new.excluded.holder, "until": _new.excluded.until},
    where=sa.or_(c.holder == _new.excluded.holder, c.until < _NOW),
).returning(c.name)


def _take(connection: sa.Connection, name: str, holder: str, lease_s: float) -> bool:
    wished = {"name": name, "holder": holder, "lease_s": lease_s}
    return connection.execute(_TAKE, wished).first() is not None


def _give_up(connection: sa.Connection, name: str, holder: str) -> None:
    connection.execute(sa.delete(leases).where(c.name == name, c.holder == holder))


_HELD = (
    sa.select(c.name)
    .where(c.name == sa.bindparam("of_name"), c.holder == sa.bindparam("by_holder"), c.until > _NOW)
    .with_for_update(read=True)  # the lease cannot change hands before this transaction ends
)


def _fenced(
    connection: sa.Connection, name: str, holder: str, operation: Callable[[sa.Connection, *Ts], R], *args: *Ts
) -> R:
    if connection.execute(_HELD, {"of_name": name, "by_holder": holder}).first() is None:
        raise UnavailableError(
            f"lease {name!r}: {holder} does not hold it any more; another replica may lead", retry_after_s=1.0
        )
    return operation(connection, *args)


class FencedDatabase(DatabaseAround):
    """Allows writes only to the holder of a lease.

    Each transaction begins with a check, and no other replica can take the lease before the transaction ends. Raise
    UnavailableError if the lease is lost.
    """

    def __init__(self, database: Database, name: str, holder: str) -> None:
        super().__init__(database)
        self._name, self._holder = name, holder

    async def write(
        self, operation: Callable[[sa.Connection, *Ts], R], *args: *Ts, durable: bool = True, row: bool = False
    ) -> R:
        # not a `row`, which would be one statement, but as durable
        lease = (self._name, self._holder)
        return await self._database.write(_fenced, *lease, operation, *args, durable=durable or row)


class Leases:
    """The leases of a catalog; times are by the database's clock."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def take(self, name: str, holder: str, lease_s: float) -> bool:
        """Take or renew the lease for `lease_s` seconds; return False while another holder's lease is live."""
        return await self._database.write(_take, name, holder, lease_s)

    async def give_up(self, name: str, holder: str) -> None:
        """Release the lease for other replicas at once; do nothing if this holder does not have it."""
        await self._database.write(_give_up, name, holder)
