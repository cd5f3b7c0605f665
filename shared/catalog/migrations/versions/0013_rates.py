"""Rates: how many calls a key may send."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("rate_per_s", sa.Double(), nullable=True))
    op.add_column("api_keys", sa.Column("burst", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("api_keys", "burst")
    op.drop_column("api_keys", "rate_per_s")
