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
_TENANT: Any = sa.bindparam("tenant")
_JUST_DRAWN = Prepared(
    sa.select(jobs)
    .where(jobs.c.id.in_(_NEWEST), jobs.c.exact_key == _KEY, jobs.c.tenant == _TENANT)
    .order_by(jobs.c.id.desc())
)
OWNERS = ("owner_1", "owner_2", "owner_3")
"""Parameters for the caller's scope keys, three at most (`visible_owners`)."""
EXACT = (
    sa.select(entries)
    .where(
        entries.c.exact_key == _KEY,
        entries.c.tenant == _TENANT,
        entries.c.owner.in_([sa.bindparam(name) for name in OWNERS]),
    )
    .order_by(entries.c.id.desc())
    .limit(1)
)
VISIBLE = Prepared(EXACT.with_only_columns(entries.c.id))
"""Finds an entry that the caller may see. Most requests have none, and need no slower EXACT_OF.

It must not find entries of others: the time of the answer would tell of them.
"""
EXACT_OF = EXACT.where(entries.c.weights_hash.in_(sa.bindparam("weights", expanding=True)))


def just_generated(
    connection: sa.Connection, exact_key: str, tenant: str, owners: Sequence[str], weights: Collection[str] = ()
) -> Entry | None:
    """Return the entry, still without states, that a finished job is about to become.

    Callers must search here before the entries: the maintainer writes the entry and removes the job from this list in
    one transaction.
    """
    for job in jobs_of(_JUST_DRAWN.all(connection, {"by_key": exact_key, "tenant": tenant})):
        entry = entry_of(job)
        if entry is None or (weights and entry.compat.weights_hash not in weights):
            continue
        if owner_key(entry.scope, entry.tenant, entry.user) in owners:
            return entry
    return None
