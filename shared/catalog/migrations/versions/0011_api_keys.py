"""API keys, and the subject that a job belongs to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("roles", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    op.add_column("jobs", sa.Column("subject", sa.Text(), nullable=False, server_default=""))
    op.create_index("ix_jobs_tenant_subject_id", "jobs", ["tenant", "subject", "id"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_jobs_tenant_subject_id", table_name="jobs")
    op.drop_column("jobs", "subject")
    op.drop_table("api_keys")
