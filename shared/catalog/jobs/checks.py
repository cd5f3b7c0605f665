"""Jobs of live checks: clients neither list them nor wait for them, and they are deleted once compared."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from shared.catalog.engines.database import Database
from shared.catalog.tables import jobs
from shared.domain.types import JobState

CHECKS = "~checks"
"""Tenant of these jobs. No client can have this name (services/gateway/validation.py)."""

c = jobs.c
OF_CLIENTS = c.tenant != CHECKS
_BUSY = sa.select(c.id).where(c.state.in_(sa.bindparam("states", expanding=True)), OF_CLIENTS).limit(1)
_LEFT: Any = sa.select(c.id).where(c.tenant == CHECKS)
_DISCARD = sa.delete(jobs).where(c.id == sa.bindparam("job_id"), c.tenant == CHECKS).returning(c.picture_key)


def _busy(connection: sa.Connection, states: list[str]) -> bool:
    return connection.execute(_BUSY, {"states": states}).first() is not None


def _left(connection: sa.Connection) -> list[str]:
    return list(connection.execute(_LEFT).scalars())


def _discard(connection: sa.Connection, job_id: str) -> str:
    return connection.execute(_DISCARD, {"job_id": job_id}).scalar() or ""


class CheckJobs:
    """The catalog's jobs of live checks."""

    _database: Database

    async def busy(self, *, running: bool) -> bool:
        """Return whether a client's job waits; `running`: or runs."""
        states = [JobState.QUEUED.value, *([JobState.RUNNING.value] if running else [])]
        return await self._database.read(_busy, states)

    async def left_checks(self) -> list[str]:
        """Return the ids of all jobs of live checks, such as those of a leader that was killed."""
        return await self._database.read(_left)

    async def discard(self, job_id: str) -> str:
        """Delete a live check's job in any state, and return the key of its image; empty: it has none."""
        return await self._database.write(_discard, job_id, durable=False)
