"""Rotations: which key a key replaces; a key is replaced once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("replaces", sa.String(32), nullable=True))
    op.create_index("ix_api_keys_replaces", "api_keys", ["replaces"], unique=True)


def downgrade() -> None:
    op.drop_index("ix_api_keys_replaces", table_name="api_keys")
    op.drop_column("api_keys", "replaces")
