"""Frames: the length of an entry's clip, whose latents start only clips of equal length."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("entries", sa.Column("frames", sa.Integer(), server_default="1", nullable=False))


def downgrade() -> None:
    op.drop_column("entries", "frames")
