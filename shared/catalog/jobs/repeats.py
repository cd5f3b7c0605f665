"""Finds the stored image of the same request (an exact repeat) as soon as that request's job has finished."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from shared.catalog.engines.prepared import Prepared
from shared.catalog.jobs.job_rows import jobs_of
from shared.catalog.tables import captured, entries, jobs
from shared.domain.exact_repeats import entry_of
from shared.domain.types import Entry, owner_key

RECENT_ROWS = 256
"""Rows of `captured` to search: some fifty jobs, far more than finish while one of them is being cached."""

_KEY: Any = sa.bindparam("by_key")
_NEWEST = sa.select(captured.c.job_id).order_by(captured.c.job_id.desc()).limit(RECENT_ROWS)
_JUST_DRAWN = Prepared(
    sa.select(jobs).where(jobs.c.id.in_(_NEWEST), jobs.c.exact_key == _KEY).order_by(jobs.c.id.desc())
)
NAMED = Prepared(sa.select(entries.c.id).where(entries.c.exact_key == _KEY).limit(1))
"""Whether any entry has the key: nearly always none, and then EXACT with its lists is spared."""
EXACT = (
    sa.select(entries)
    .where(
        entries.c.exact_key == _KEY,
        entries.c.tenant == sa.bindparam("tenant"),
        entries.c.owner.in_(sa.bindparam("owners", expanding=True)),
    )
    .order_by(entries.c.id.desc())
    .limit(1)
)
EXACT_OF = EXACT.where(entries.c.weights_hash.in_(sa.bindparam("weights", expanding=True)))


def just_generated(
    connection: sa.Connection, exact_key: str, tenant: str, owners: Sequence[str], weights: Collection[str] = ()
) -> Entry | None:
    """Return the entry, still without states, that a finished job is about to become.

    Callers must search here before the entries: the maintainer writes the entry and removes the job from this list in
    one transaction.
    """
    for job in jobs_of(_JUST_DRAWN.all(connection, {"by_key": exact_key})):
        entry = entry_of(job)
        if entry is None or (weights and entry.compat.weights_hash not in weights):
            continue
        if entry.tenant == tenant and owner_key(entry.scope, entry.tenant, entry.user) in owners:
            return entry
    return None
