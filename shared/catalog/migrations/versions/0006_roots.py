"""Roots: the entry from which a chain of hits descends, and the seed of each entry."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

ADDED = ("root", "seed")


def upgrade() -> None:
    for name in ADDED:
        op.add_column("entries", sa.Column(name, sa.Text(), server_default="", nullable=False))


def downgrade() -> None:
    for name in ADDED:
        op.drop_column("entries", name)
