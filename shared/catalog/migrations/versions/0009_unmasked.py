"""Unmasked: why a finished job has no masks, and the jobs that a segmenter has yet to look at (FlexCache §4.2.2)."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

UNSEGMENTED = "object_vector IS NOT NULL AND mask_key IS NULL AND unmasked = ''"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("unmasked", sa.Text(), server_default="", nullable=False))
    where = sa.text(UNSEGMENTED)
    op.create_index("ix_jobs_unsegmented", "jobs", ["id"], sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    op.drop_index("ix_jobs_unsegmented", table_name="jobs")
    op.drop_column("jobs", "unmasked")
