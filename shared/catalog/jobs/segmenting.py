"""Finished jobs whose results a segmenter has yet to look at."""

from __future__ import annotations

import builtins

import sqlalchemy as sa

from shared.catalog.engines.database import Database
from shared.catalog.engines.prepared import Prepared
from shared.catalog.jobs.job_rows import update_one
from shared.catalog.tables import UNSEGMENTED, captured, entries, jobs, states
from shared.domain.types import PICTURE_STEP, JobState

c, e, s = jobs.c, entries.c, states.c
_HAS_LATENT = sa.exists().where(s.entry_id == e.id, s.step > PICTURE_STEP)
_UNCACHED = sa.exists().where(captured.c.job_id == c.id)
_UNMASKED_ENTRY = sa.exists().where(e.job_id == c.id, e.mask_key.is_(None), _HAS_LATENT)
"""An entry without masks, with a latent that masks could stitch. A purged job has none, and is not in `captured`."""
_WAITING = (
    sa.select(c.id)
    .where(sa.text(UNSEGMENTED), c.background_vector.is_not(None), c.state == JobState.SUCCEEDED.value)
    .where(sa.or_(_UNCACHED, _UNMASKED_ENTRY))
    .order_by(c.id)
)
_AWAITS = Prepared(_WAITING.where(c.id == sa.bindparam("job_id")))
_UNMASKED = sa.update(jobs).where(c.id == sa.bindparam("job_id")).values(unmasked=sa.bindparam("reason"))


def _to_segment(connection: sa.Connection, limit: int, after: str) -> list[str]:
    return list(connection.execute(_WAITING.where(c.id > after).limit(limit)).scalars())


def _awaits_masks(connection: sa.Connection, job_id: str) -> bool:
    return _AWAITS.first(connection, {"job_id": job_id}) is not None


class Segmenting:
    """The jobs of a catalog, as a segmenter sees them."""

    _database: Database

    async def to_segment(self, limit: int = 100, after: str = "") -> builtins.list[str]:
        """Return ids of succeeded jobs with both parts, and with neither masks nor a reason for having none.

        Oldest first, after the id `after`."""
        return await self._database.read(_to_segment, limit, after)

    async def awaits_masks(self, job_id: str) -> bool:
        """Return whether `to_segment` would list this job."""
        return await self._database.read(_awaits_masks, job_id, row=True)

    async def note_unmasked(self, job_id: str, reason: str) -> bool:
        """Note why the job's result has no masks; return False if the job is gone."""
        return await self._database.write(update_one, _UNMASKED, {"job_id": job_id, "reason": reason}, durable=False)
