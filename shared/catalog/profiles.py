"""Measured tables by kind, model and weights: K tables, latencies."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from shared.catalog.engines.database import Database
from shared.catalog.tables import insert, now_s, profiles
from shared.runtime.unreadable import unreadable

p = profiles.c


def _put(connection: sa.Connection, kind: str, model: str, weights_hash: str, value: dict[str, Any]) -> None:
    new = insert(profiles).values(
        kind=kind, model=model, weights_hash=weights_hash, value=value, updated_at=now_s()
    )  # fmt: skip
    connection.execute(
        new.on_conflict_do_update(
            index_elements=["kind", "model", "weights_hash"],
            set_={"value": new.excluded.value, "updated_at": new.excluded.updated_at},
        )
    )


def _get(connection: sa.Connection, kind: str, model: str, weights_hash: str) -> dict[str, Any] | None:
    query = sa.select(p.value).where(p.kind == kind, p.model == model, p.weights_hash == weights_hash)
    try:
        return connection.execute(query).scalar()
    except ValueError as error:  # not JSON
        unreadable(profiles.name, f"{kind} {model} {weights_hash}", error)
        return None


class Profiles:
    """The profiles of a catalog; kinds: `k_table_<α>`, `image_k_table_<α>`, `latency`,
    `step_seconds`, `live_checks`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, kind: str, model: str, weights_hash: str, value: dict[str, Any]) -> None:
        """Add or replace a profile; `value` is JSON."""
        await self._database.write(_put, kind, model, weights_hash, value)

    async def get(self, kind: str, model: str, weights_hash: str) -> dict[str, Any] | None:
        """Return the profile, or None if there is none that this version can read."""
        return await self._database.read(_get, kind, model, weights_hash)
