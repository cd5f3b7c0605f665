"""Masks of cache entries: noted on the entry, or on its job until the entry exists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from shared.catalog.engines.database import Database, chunks
from shared.catalog.tables import entries, jobs, states
from shared.domain.masks import Mask
from shared.domain.types import PICTURE_STEP

e, c, s = entries.c, jobs.c, states.c
_MASK: dict[str, Any] = {name: sa.bindparam(f"with_{name}") for name in ("mask_key", "mask_sha256", "mask_bytes")}
_NONE: dict[str, Any] = {"mask_key": None, "mask_sha256": "", "mask_bytes": 0}
_HAS_LATENT = sa.exists().where(s.entry_id == e.id, s.step > PICTURE_STEP)
_ENTRY_OF = sa.select(e.id, e.mask_key, _HAS_LATENT.label("latent")).where(e.job_id == sa.bindparam("of_job"))
_JOB = sa.select(c.mask_key).where(c.id == sa.bindparam("of_job"))
_TO_ENTRY = sa.update(entries).where(e.job_id == sa.bindparam("of_job")).values(**_MASK)
_TO_JOB = sa.update(jobs).where(c.id == sa.bindparam("of_job")).values(**_MASK)
MOVED = sa.update(jobs).where(c.id == sa.bindparam("of_job")).values(**_NONE)


def _note(connection: sa.Connection, job_id: str, mask: Mask) -> bool:
    entry = connection.execute(_ENTRY_OF, {"of_job": job_id}).first()
    row = entry or connection.execute(_JOB, {"of_job": job_id}).first()
    if row is None or (entry is not None and not entry.latent):
        return False
    if row.mask_key:
        return bool(row.mask_key == mask.key)
    named = {"with_mask_key": mask.key, "with_mask_sha256": mask.sha256, "with_mask_bytes": mask.bytes}
    connection.execute(_TO_JOB if entry is None else _TO_ENTRY, {"of_job": job_id, **named})
    return True


def _drop(connection: sa.Connection, entry_ids: Sequence[str], key: str) -> list[str]:
    keys: list[str] = []
    for some in chunks(entry_ids):
        where = e.id.in_(some), e.mask_key.is_not(None), *([e.mask_key == key] if key else [])
        keys += connection.execute(sa.select(e.mask_key).where(*where)).scalars()
        connection.execute(sa.update(entries).where(*where).values(**_NONE))
    return keys


def _sizes(connection: sa.Connection) -> dict[str, int]:
    return {row.id: row.mask_bytes for row in connection.execute(sa.select(e.id, e.mask_bytes).where(e.mask_bytes > 0))}


class Masks:
    """The masks of a catalog's entries."""

    _database: Database

    async def note_mask(self, job_id: str, mask: Mask) -> bool:
        """Note the masks of this job's result on its entry, or on the job while it has none. Repeating this is safe.

        Return False where the blob is of no use: the job is gone, its entry has no latent, or other masks were noted
        before.
        """
        return await self._database.write(_note, job_id, mask, durable=False)

    async def drop_masks(self, entry_ids: Sequence[str], key: str = "") -> list[str]:
        """Remove these entries' masks, with `key` only those under that key; return the blob keys."""
        return await self._database.write(_drop, entry_ids, key, durable=False)

    async def mask_sizes(self) -> dict[str, int]:
        """Return the bytes of each entry's masks."""
        return await self._database.read(_sizes)
