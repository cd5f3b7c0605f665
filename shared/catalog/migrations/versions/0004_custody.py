"""Custody: the blob store of this catalog, and the blobs that await deletion; an index for the expiry of jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

ENDED = "state IN ('succeeded', 'failed', 'cancelled')"


def upgrade() -> None:
    op.create_table(
        "identity",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_identity")),
    )
    op.create_table(
        "quarantine",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_quarantine")),
    )
    op.create_index("ix_quarantine_since", "quarantine", ["since"], unique=False)
    op.create_table(
        "erasures",
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_erasures")),
    )
    op.create_index(
        "ix_jobs_ended",
        "jobs",
        ["updated_at"],
        unique=False,
        sqlite_where=sa.text(ENDED),
        postgresql_where=sa.text(ENDED),
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_ended", table_name="jobs", sqlite_where=sa.text(ENDED), postgresql_where=sa.text(ENDED))
    op.drop_table("erasures")
    op.drop_index("ix_quarantine_since", table_name="quarantine")
    op.drop_table("quarantine")
    op.drop_table("identity")
