"""What each tenant has in the cache, and which of it is least recently used."""

from __future__ import annotations

from collections import Counter
from typing import Any

import sqlalchemy as sa

from shared.catalog.engines.database import Database, chunks
from shared.catalog.entries.entry_rows import IS_READABLE, state_of
from shared.catalog.tables import entries, states
from shared.domain.types import State

e, s = entries.c, states.c
AT_ONCE = 1000
"""Entries that one read returns at most."""
_JOINED = states.join(entries, e.id == s.entry_id)
_STATE_BYTES = sa.select(e.tenant, sa.func.sum(s.bytes)).select_from(_JOINED).group_by(e.tenant)
_MASK_BYTES = sa.select(e.tenant, sa.func.sum(e.mask_bytes)).where(e.mask_bytes > 0).group_by(e.tenant)
_BY_LAST_USE = (
    sa.select(e.id, (sa.func.sum(s.bytes) + sa.func.max(e.mask_bytes)).label("size"))
    .select_from(_JOINED)
    .where(e.tenant == sa.bindparam("of_tenant"), IS_READABLE)
    .group_by(e.id)
    .order_by(sa.func.max(s.used_at), e.id)
    .limit(AT_ONCE)
)


def _bytes_by_tenant(connection: sa.Connection) -> dict[str, int]:
    found = Counter[str]()
    for query in (_STATE_BYTES, _MASK_BYTES):
        found.update({tenant: int(size) for tenant, size in connection.execute(query)})
    return dict(found)


def _least_recently_used(connection: sa.Connection, tenant: str, size: int) -> list[State]:
    chosen: list[Any] = []
    with connection.execute(_BY_LAST_USE, {"of_tenant": tenant}) as rows:
        for row in rows:
            if size <= 0:
                break
            chosen.append(row.id)
            size -= int(row.size)
    found = [
        row for some in chunks(chosen) for row in connection.execute(sa.select(states).where(s.entry_id.in_(some)))
    ]
    return [state_of(row) for row in found]


class OfTenants:
    """The cache's bytes by tenant."""

    _database: Database

    async def bytes_by_tenant(self) -> dict[str, int]:
        """Return the bytes of each tenant's latents, images and masks that jobs can start from."""
        return await self._database.read(_bytes_by_tenant)

    async def least_recently_used(self, tenant: str, size: int) -> list[State]:
        """Return all states of the tenant's least recently used entries, of so many bytes at least if AT_ONCE entries
        have them."""
        return await self._database.read(_least_recently_used, tenant, size)
