"""Deadlines: what the order of a lane and the gateway's predictions need of each job (PatchedServe §6)."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

COLUMNS = ("deadline_s", "standalone_s", "batched_s", "predicted_s")


def upgrade() -> None:
    for name in COLUMNS:
        op.add_column("jobs", sa.Column(name, sa.Double(), nullable=True))


def downgrade() -> None:
    for name in reversed(COLUMNS):
        op.drop_column("jobs", name)
