"""Clips: an index of each tenant's, so that listing them reads no other jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

CLIPS = """request LIKE '%"modality":"video"%'"""


def upgrade() -> None:
    where = sa.text(CLIPS)
    op.create_index("ix_jobs_clips", "jobs", ["tenant", "id"], sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    op.drop_index("ix_jobs_clips", table_name="jobs")
