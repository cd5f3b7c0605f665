"""Exposure: how long workers held each job, how often they crashed with it, and how often workers crash at all."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

ADDED = ("crashes_alone", "exposed_from", "exposed_s", "alone_s", "alone", "seen_at")


def upgrade() -> None:
    zero = sa.text("0")
    op.add_column("jobs", sa.Column("crashes_alone", sa.Integer(), server_default=zero, nullable=False))
    for name in ("exposed_from", "exposed_s", "alone_s", "seen_at"):
        op.add_column("jobs", sa.Column(name, sa.Double(), server_default=zero, nullable=False))
    op.add_column("jobs", sa.Column("alone", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.create_table(
        "workers",
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("begun_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.Column("busy_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("holder", name=op.f("pk_workers")),
    )
    op.create_index(op.f("ix_workers_seen_at"), "workers", ["seen_at"])


def downgrade() -> None:
    op.drop_index(op.f("ix_workers_seen_at"), table_name="workers")
    op.drop_table("workers")
    for name in ADDED:
        op.drop_column("jobs", name)
