"""Jobs, idempotency keys, captured latents, entries, states, vectors and profiles."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "entries",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=True),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("weights_hash", sa.Text(), nullable=False),
        sa.Column("sampler", sa.Text(), nullable=False),
        sa.Column("dtype", sa.Text(), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("height", sa.Integer(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("exact_key", sa.Text(), nullable=False),
        sa.Column("picture_key", sa.Text(), nullable=False),
        sa.Column("picture_sha256", sa.Text(), nullable=False),
        sa.Column("encoder_hash", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_entries"),
        sa.UniqueConstraint("job_id", name="uq_entries_job_id"),
    )
    op.create_index("ix_entries_exact_key_owner_id", "entries", ["exact_key", "owner", "id"], unique=False)
    op.create_index("ix_entries_picture_key", "entries", ["picture_key"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("confirmed", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.Column("encoder_hash", sa.Text(), nullable=False),
        sa.Column("exact_key", sa.Text(), nullable=False),
        sa.Column("checkpoint_key", sa.Text(), nullable=True),
        sa.Column("checkpoint_step", sa.Integer(), nullable=False),
        sa.Column("picture_key", sa.Text(), nullable=True),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("plan", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=False),
        sa.Column("warnings", sa.Text(), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    op.create_index(
        "ix_jobs_checkpoint_key",
        "jobs",
        ["checkpoint_key"],
        unique=False,
        sqlite_where=sa.text("checkpoint_key IS NOT NULL"),
        postgresql_where=sa.text("checkpoint_key IS NOT NULL"),
    )
    op.create_index(
        "ix_jobs_picture_key",
        "jobs",
        ["picture_key"],
        unique=False,
        sqlite_where=sa.text("picture_key IS NOT NULL"),
        postgresql_where=sa.text("picture_key IS NOT NULL"),
    )
    op.create_index("ix_jobs_state_lane_id", "jobs", ["state", "lane", "id"], unique=False)
    op.create_index("ix_jobs_tenant_id", "jobs", ["tenant", "id"], unique=False)
    op.create_table(
        "profiles",
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("weights_hash", sa.Text(), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "model", "weights_hash", name="pk_profiles"),
    )
    op.create_table(
        "captured",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_captured_job_id_jobs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("key", name="pk_captured"),
    )
    op.create_index("ix_captured_job_id", "captured", ["job_id"], unique=False)
    op.create_table(
        "idempotency_keys",
        sa.Column("caller", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("body_hash", sa.Text(), nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
            name="fk_idempotency_keys_job_id_jobs",
            ondelete="CASCADE",
            initially="DEFERRED",
            deferrable=True,
        ),
        sa.PrimaryKeyConstraint("caller", "key", name="pk_idempotency_keys"),
    )
    op.create_index("ix_idempotency_keys_expires_at", "idempotency_keys", ["expires_at"], unique=False)
    op.create_index("ix_idempotency_keys_job_id", "idempotency_keys", ["job_id"], unique=False)
    op.create_table(
        "states",
        sa.Column("entry_id", sa.String(length=64), nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("codec", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("uses", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["entry_id"], ["entries.id"], name="fk_states_entry_id_entries", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("entry_id", "step", name="pk_states"),
    )
    op.create_index("ix_states_key", "states", ["key"], unique=False)
    op.create_table(
        "vectors",
        sa.Column("entry_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["entry_id"], ["entries.id"], name="fk_vectors_entry_id_entries", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("entry_id", "name", name="pk_vectors"),
    )


def downgrade() -> None:
    op.drop_table("vectors")
    op.drop_index("ix_states_key", table_name="states")
    op.drop_table("states")
    op.drop_index("ix_idempotency_keys_job_id", table_name="idempotency_keys")
    op.drop_index("ix_idempotency_keys_expires_at", table_name="idempotency_keys")
    op.drop_table("idempotency_keys")
    op.drop_index("ix_captured_job_id", table_name="captured")
    op.drop_table("captured")
    op.drop_table("profiles")
    op.drop_index("ix_jobs_tenant_id", table_name="jobs")
    op.drop_index("ix_jobs_state_lane_id", table_name="jobs")
    op.drop_index(
        "ix_jobs_picture_key",
        table_name="jobs",
        sqlite_where=sa.text("picture_key IS NOT NULL"),
        postgresql_where=sa.text("picture_key IS NOT NULL"),
    )
    op.drop_index(
        "ix_jobs_checkpoint_key",
        table_name="jobs",
        sqlite_where=sa.text("checkpoint_key IS NOT NULL"),
        postgresql_where=sa.text("checkpoint_key IS NOT NULL"),
    )
    op.drop_table("jobs")
    op.drop_index("ix_entries_picture_key", table_name="entries")
    op.drop_index("ix_entries_exact_key_owner_id", table_name="entries")
    op.drop_table("entries")
