"""Parts: object and background of a prompt, their embeddings, and the masks of a clip (FlexCache §4.2)."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

VECTORS = ("object_vector", "background_vector")
TEXTS = ("parts", "background_root")


def upgrade() -> None:
    for name in VECTORS:
        op.add_column("jobs", sa.Column(name, sa.LargeBinary(), nullable=True))
    for name in TEXTS:
        op.add_column("entries", sa.Column(name, sa.Text(), server_default="", nullable=False))
    for table in ("jobs", "entries"):
        op.add_column(table, sa.Column("mask_key", sa.Text(), nullable=True))
        op.add_column(table, sa.Column("mask_sha256", sa.Text(), server_default="", nullable=False))
        op.add_column(table, sa.Column("mask_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
        named = sa.text("mask_key IS NOT NULL")
        op.create_index(f"ix_{table}_mask_key", table, ["mask_key"], sqlite_where=named, postgresql_where=named)


def downgrade() -> None:
    for table in ("jobs", "entries"):
        op.drop_index(f"ix_{table}_mask_key", table_name=table)
        for name in ("mask_key", "mask_sha256", "mask_bytes"):
            op.drop_column(table, name)
    for name in TEXTS:
        op.drop_column("entries", name)
    for name in VECTORS:
        op.drop_column("jobs", name)
