"""What PostgreSQL does in one statement, its own transaction: one round trip where BEGIN … COMMIT takes three or more.

SQLite, which is in this process and knows no changes within a WITH, runs the same in a transaction (jobs.py).
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from shared.catalog.tables import captured, idempotency_keys, jobs, now_s

_NOW: Any = now_s()
_GIVEN = [one for one in jobs.c if one.name not in ("created_at", "updated_at") and one.server_default is None]
"""What `job_rows.row_of` says of a new job."""

_keys = postgresql.insert(idempotency_keys).values(
    caller=sa.bindparam("by_caller"),
    key=sa.bindparam("by_key"),
    body_hash=sa.bindparam("of_body"),
    job_id=sa.bindparam("id"),
    expires_at=_NOW + sa.bindparam("lifetime_s", type_=sa.Double),
)
_taken = (
    _keys.on_conflict_do_update(
        index_elements=["caller", "key"],
        set_={name: _keys.excluded[name] for name in ("body_hash", "job_id", "expires_at")},
        where=idempotency_keys.c.expires_at <= _NOW,
    )
    .returning(idempotency_keys.c.job_id)
    .cte("taken")
)
ACCEPT = (
    sa.insert(jobs)
    .from_select(
        [*(column.name for column in _GIVEN), "created_at", "updated_at"],
        sa.select(*(sa.bindparam(column.name, type_=column.type) for column in _GIVEN), _NOW, _NOW).select_from(_taken),
    )
    .returning(jobs.c.created_at, jobs.c.updated_at)
)
"""The key and its job, or neither: no row when another job has the key. Two replicas with the same key meet on its row:
the second waits, then finds it taken."""


def finishing(update: sa.Update) -> Any:
    """The end of a job by this update and, if that hit its row, what it captured: the keys in `keys`. As many rows as
    there are keys, none when the attempt lost."""
    done = update.returning(jobs.c.id).cte("done")
    key: Any = sa.func.unnest(sa.bindparam("keys", type_=postgresql.ARRAY(sa.Text)))
    return sa.insert(captured).from_select(["key", "job_id"], sa.select(key, done.c.id)).returning(captured.c.key)
