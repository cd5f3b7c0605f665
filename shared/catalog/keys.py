"""API keys: added, listed, rotated and revoked. Times are by the database's clock."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from shared.catalog.engines.database import Database
from shared.catalog.tables import api_keys, insert, now_s
from shared.domain.errors import ConflictError, NotFoundError
from shared.domain.identity import BOOTSTRAP, ApiKey, Principal, Rate, Role

ENDED_KEPT_S = 365 * 86400.0
"""Seconds for which a revoked or expired key stays listed."""
c = api_keys.c
_NOW: Any = now_s()
_LIVE = sa.and_(c.revoked_at.is_(None), sa.or_(c.expires_at.is_(None), c.expires_at > _NOW))
_ENDED_AT: Any = sa.func.coalesce(c.revoked_at, c.expires_at)
_LONG_ENDED = sa.delete(api_keys).where(c.id != BOOTSTRAP, _ENDED_AT < _NOW - ENDED_KEPT_S)
"""The first key's row stays: without it, the next start of a catalog with no other key would make that key again."""


def _add(connection: sa.Connection, key: ApiKey, lifetime_s: float | None, replaces: str | None = None) -> None:
    who = key.principal
    connection.execute(_LONG_ENDED)  # only a new key makes the table longer
    connection.execute(
        sa.insert(api_keys).values(
            id=key.id,
            digest=key.digest,
            tenant=who.tenant,
            subject=who.subject,
            roles=" ".join(sorted(who.roles)),
            created_at=_NOW,
            expires_at=None if lifetime_s is None else _NOW + lifetime_s,
            replaces=replaces,
            rate_per_s=key.rate.per_s if key.rate else None,
            burst=key.rate.burst if key.rate else None,
        )
    )


def _add_first(connection: sa.Connection, key: ApiKey) -> bool:
    if connection.execute(sa.select(c.id).limit(1)).first() is not None:
        return False
    who, roles = key.principal, " ".join(sorted(key.principal.roles))
    new = insert(api_keys).values(
        id=key.id, digest=key.digest, tenant=who.tenant, subject=who.subject, roles=roles, created_at=_NOW
    )  # fmt: skip
    return connection.execute(new.on_conflict_do_nothing().returning(c.id)).first() is not None


def _read(connection: sa.Connection, live: bool) -> list[ApiKey]:
    query = sa.select(api_keys).order_by(c.created_at, c.id)
    return [_key(row) for row in connection.execute(query.where(_LIVE) if live else query)]


def _key(row: Any) -> ApiKey:
    known = frozenset(Role(name) for name in row.roles.split() if name in set(Role))
    who = Principal(row.tenant, row.subject, known)
    rate = None if row.rate_per_s is None or row.burst is None else Rate(row.rate_per_s, row.burst)
    return ApiKey(row.id, row.digest, who, row.created_at, row.expires_at, row.revoked_at, row.replaces, rate)


def _rotate(connection: sa.Connection, key_id: str, new_id: str, new_digest: str, overlap_s: float) -> ApiKey:
    old = connection.execute(sa.select(api_keys).where(c.id == key_id, _LIVE).with_for_update()).first()
    if old is None:
        raise _missing(key_id)
    if newer := connection.execute(sa.select(c.id).where(c.replaces == key_id)).scalar():
        raise ConflictError(f"key {key_id!r}: was rotated to {newer!r}, which has its place; rotate or revoke that one")
    lifetime_s = None if old.expires_at is None else old.expires_at - old.created_at
    key = ApiKey(new_id, new_digest, _key(old).principal, rate=_key(old).rate)
    _add(connection, key, lifetime_s, key_id)
    ends: Any = _NOW + overlap_s
    sooner = sa.case((sa.and_(c.expires_at.is_not(None), c.expires_at < ends), c.expires_at), else_=ends)
    connection.execute(sa.update(api_keys).where(c.id == key_id).values(expires_at=sooner))
    return key


def _revoke(connection: sa.Connection, key_id: str) -> None:
    done = sa.update(api_keys).where(c.id == key_id, c.revoked_at.is_(None)).values(revoked_at=_NOW).returning(c.id)
    if connection.execute(done).first() is None:
        raise _missing(key_id)


def _missing(key_id: str) -> NotFoundError:
    return NotFoundError(f"key {key_id!r}: no live key has this id; see `afterimage keys list`")


class Keys:
    """The API keys of a catalog. Revoked and expired keys stay as rows for `ENDED_KEPT_S`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, key: ApiKey, lifetime_s: float | None = None) -> None:
        """Add a key that expires after `lifetime_s` seconds; None: never."""
        await self._database.write(_add, key, lifetime_s)

    async def add_first(self, key: ApiKey) -> bool:
        """Add the key if the catalog never had one; return whether it was added."""
        return await self._database.write(_add_first, key)

    async def all(self) -> list[ApiKey]:
        """Return every key, oldest first."""
        return await self._database.read(_read, False)

    async def live(self) -> list[ApiKey]:
        """Return the keys that are neither revoked nor expired."""
        return await self._database.read(_read, True)

    async def rotate(self, key_id: str, new_id: str, new_digest: str, overlap_s: float) -> ApiKey:
        """Add a key of the same principal, lifetime and rate; the old one works for `overlap_s` more seconds.

        Raises NotFoundError for an id without a live key, and ConflictError for a key that was rotated before.
        """
        return await self._database.write(_rotate, key_id, new_id, new_digest, overlap_s)

    async def revoke(self, key_id: str) -> None:
        """End a key. Raises NotFoundError for an unknown or revoked one."""
        await self._database.write(_revoke, key_id)
