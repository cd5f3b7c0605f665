"""The catalog's tables, in SQLAlchemy Core, the same on SQLite and PostgreSQL."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

METADATA = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


insert = postgresql.insert
"""INSERT with ON CONFLICT for both databases: SQLite's compiler accepts PostgreSQL's clause; the syntax is the same."""


class now_s(GenericFunction[float]):  # noqa: N801 — SQLAlchemy names a function after its class
    """The database's clock in Unix seconds; on SQLite, a function that each connection registers."""

    type = sa.Double()
    inherit_cache = True


@compiles(now_s, "postgresql")
def _now_on_postgresql(_element: now_s, _compiler: SQLCompiler, **_kw: Any) -> str:
    # clock_timestamp, not now(): a transaction that waited for a row lock must see the time after the wait
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"


ENDED = "state IN ('succeeded', 'failed', 'cancelled')"
"""Literal SQL: with bound values, neither database can prove that the partial index covers the query."""

UNSEGMENTED = "object_vector IS NOT NULL AND mask_key IS NULL AND unmasked = ''"
CLIPS = """request LIKE '%"modality":"video"%'"""
"""Jobs of clips. Quotes of a prompt are escaped in JSON, so no prompt looks like this."""
NAMED_MASK = sa.text("mask_key IS NOT NULL")


def _mask_columns() -> tuple[sa.Column[Any], ...]:
    """Return the columns of `shared.domain.masks.Mask`; without a mask its key is NULL."""
    return (
        sa.Column("mask_key", sa.Text, nullable=True),
        sa.Column("mask_sha256", sa.Text, nullable=False, server_default=""),
        sa.Column("mask_bytes", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    )


def _by_mask(table: str) -> sa.Index:
    return sa.Index(f"ix_{table}_mask_key", "mask_key", sqlite_where=NAMED_MASK, postgresql_where=NAMED_MASK)


jobs = sa.Table(
    "jobs",
    METADATA,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("lane", sa.Text, nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("failures", sa.Integer, nullable=False),
    sa.Column("crashes", sa.Integer, nullable=False),
    sa.Column("crashes_alone", sa.Integer, nullable=False, server_default=sa.text("0")),
    # time of the first claim; 0 before
    sa.Column("exposed_from", sa.Double, nullable=False, server_default=sa.text("0")),
    sa.Column("exposed_s", sa.Double, nullable=False, server_default=sa.text("0")),
    sa.Column("alone_s", sa.Double, nullable=False, server_default=sa.text("0")),
    sa.Column("alone", sa.Boolean, nullable=False, server_default=sa.false()),  # the current attempt runs alone
    # time of the last claim or renewal; 0: not running
    sa.Column("seen_at", sa.Double, nullable=False, server_default=sa.text("0")),
    sa.Column("worker", sa.Text, nullable=False),
    sa.Column("error", sa.Text, nullable=False),
    sa.Column("confirmed", sa.Boolean, nullable=False),
    sa.Column("buried", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("updated_at", sa.Double, nullable=False),
    sa.Column("lease_until", sa.Double, nullable=False),
    sa.Column("encoder_hash", sa.Text, nullable=False),
    sa.Column("exact_key", sa.Text, nullable=False),
    sa.Column("checkpoint_key", sa.Text, nullable=True),
    sa.Column("checkpoint_step", sa.Integer, nullable=False),
    sa.Column("picture_key", sa.Text, nullable=True),
    sa.Column("request", sa.Text, nullable=False),  # JSON of shared.domain.types.Request
    sa.Column("plan", sa.Text, nullable=False),  # JSON of shared.domain.types.Plan
    sa.Column("result", sa.Text, nullable=False),  # JSON of shared.domain.types.Result, empty until there is one
    sa.Column("warnings", sa.Text, nullable=False),  # JSON list, empty for none
    sa.Column("vector", sa.LargeBinary, nullable=False),
    sa.Column("object_vector", sa.LargeBinary, nullable=True),
    sa.Column("background_vector", sa.LargeBinary, nullable=True),
    # the masks, until an entry names them
    *_mask_columns(),
    sa.Column("unmasked", sa.Text, nullable=False, server_default=""),  # why there are no masks; empty: undecided
    sa.Column("deadline_s", sa.Double, nullable=True),  # seconds after created_at, as in the request
    sa.Column("standalone_s", sa.Double, nullable=True),  # predicted seconds of the plan alone
    sa.Column("batched_s", sa.Double, nullable=True),  # … in a full batch
    sa.Column("predicted_s", sa.Double, nullable=True),  # predicted finish in seconds after created_at
    sa.Column("subject", sa.Text, nullable=False, server_default=""),  # of the key that asked; empty: anonymous
    sa.Column("pixel_steps", sa.BigInteger, nullable=False, server_default=sa.text("0")),  # work, as planned
    sa.Index("ix_jobs_unsegmented", "id", sqlite_where=sa.text(UNSEGMENTED), postgresql_where=sa.text(UNSEGMENTED)),
    sa.Index(None, "state", "lane", "id"),
    _by_mask("jobs"),
    sa.Index(None, "tenant", "id"),
    sa.Index("ix_jobs_clips", "tenant", "id", sqlite_where=sa.text(CLIPS), postgresql_where=sa.text(CLIPS)),
    sa.Index("ix_jobs_tenant_subject_id", "tenant", "subject", "id"),
    sa.Index(
        "ix_jobs_picture_key",
        "picture_key",
        sqlite_where=sa.text("picture_key IS NOT NULL"),
        postgresql_where=sa.text("picture_key IS NOT NULL"),
    ),
    sa.Index(
        "ix_jobs_checkpoint_key",
        "checkpoint_key",
        sqlite_where=sa.text("checkpoint_key IS NOT NULL"),
        postgresql_where=sa.text("checkpoint_key IS NOT NULL"),
    ),
    # expiry reads only jobs that ended, oldest first
    sa.Index("ix_jobs_ended", "updated_at", sqlite_where=sa.text(ENDED), postgresql_where=sa.text(ENDED)),
)

idempotency_keys = sa.Table(
    "idempotency_keys",
    METADATA,
    sa.Column("caller", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("body_hash", sa.Text, nullable=False),
    # deferred: the key is inserted first, so that two replicas conflict on the key and not on the job
    sa.Column(
        "job_id",
        sa.String(64),
        sa.ForeignKey("jobs.id", ondelete="CASCADE", deferrable=True, initially="DEFERRED"),
        nullable=False,
        index=True,
    ),
    sa.Column("expires_at", sa.Double, nullable=False, index=True),
)

captured = sa.Table(
    # latents of finished jobs that are neither cached nor dropped yet; one `none:` row for a job without latents
    "captured",
    METADATA,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("job_id", sa.String(64), sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False, index=True),
)

entries = sa.Table(
    "entries",
    METADATA,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("job_id", sa.String(64), nullable=True, unique=True),  # one entry per job; jobs expire before entries
    sa.Column("prompt", sa.Text, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("scope", sa.String(16), nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("weights_hash", sa.Text, nullable=False),
    sa.Column("sampler", sa.Text, nullable=False),
    sa.Column("dtype", sa.Text, nullable=False),
    sa.Column("width", sa.Integer, nullable=False),
    sa.Column("height", sa.Integer, nullable=False),
    sa.Column("steps", sa.Integer, nullable=False),
    sa.Column("exact_key", sa.Text, nullable=False),
    sa.Column("picture_key", sa.Text, nullable=False, index=True),
    sa.Column("picture_sha256", sa.Text, nullable=False),
    sa.Column("encoder_hash", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("root", sa.Text, nullable=False, server_default=""),  # entry id; empty: the entry itself
    sa.Column("seed", sa.Text, nullable=False, server_default=""),  # decimal, up to 2^64 − 1; empty: unknown
    sa.Column("frames", sa.Integer, nullable=False, server_default="1"),
    sa.Column("parts", sa.Text, nullable=False, server_default=""),  # JSON of shared.domain.parts.Parts, or empty
    sa.Column("background_root", sa.Text, nullable=False, server_default=""),  # entry id; of a stitched entry
    *_mask_columns(),
    sa.Index(None, "exact_key", "owner", "id"),
    _by_mask("entries"),
)

states = sa.Table(
    "states",
    METADATA,
    sa.Column("entry_id", sa.String(64), sa.ForeignKey("entries.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("key", sa.Text, nullable=False, index=True),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("codec", sa.Text, nullable=False),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("uses", sa.Integer, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("used_at", sa.Double, nullable=False),
)

vectors = sa.Table(
    "vectors",
    METADATA,
    sa.Column("entry_id", sa.String(64), sa.ForeignKey("entries.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("name", sa.String(32), primary_key=True),
    sa.Column("data", sa.LargeBinary, nullable=False),
)

profiles = sa.Table(
    "profiles",
    METADATA,
    sa.Column("kind", sa.String(32), primary_key=True),
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("weights_hash", sa.Text, primary_key=True),
    sa.Column("value", sa.JSON, nullable=False),
    sa.Column("updated_at", sa.Double, nullable=False),
)

workers = sa.Table(
    # one row per worker process, however many jobs it holds: for the rate of worker crashes
    "workers",
    METADATA,
    sa.Column("holder", sa.Text, primary_key=True),
    sa.Column("begun_at", sa.Double, nullable=False),
    sa.Column("seen_at", sa.Double, nullable=False, index=True),
    sa.Column("until", sa.Double, nullable=False),  # end of the report's validity; 0: the worker holds no job
    sa.Column("busy_s", sa.Double, nullable=False),
)

leases = sa.Table(
    "leases",
    METADATA,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("until", sa.Double, nullable=False),
)

api_keys = sa.Table(
    # shared.domain.identity.ApiKey
    "api_keys",
    METADATA,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("digest", sa.String(64), nullable=False),  # sha256 of the secret, in hex
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("roles", sa.Text, nullable=False),  # separated by spaces
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double, nullable=True),
    sa.Column("revoked_at", sa.Double, nullable=True),
    sa.Column("replaces", sa.String(32), nullable=True),  # id of the key that a rotation replaced by this one
    sa.Column("rate_per_s", sa.Double, nullable=True),  # calls per second; NULL: no limit
    sa.Column("burst", sa.Integer, nullable=True),  # calls at once
    sa.Index("ix_api_keys_replaces", "replaces", unique=True),
)

identity = sa.Table(
    # names: `catalog` (this catalog's id), `store` (its blob store's id), `paired_with` (that store's location)
    "identity",
    METADATA,
    sa.Column("name", sa.String(32), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

quarantine = sa.Table(
    # blobs that no row named at a collection pass; `seen_at` is the last pass that found them unnamed
    "quarantine",
    METADATA,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("since", sa.Double, nullable=False, index=True),
    sa.Column("seen_at", sa.Double, nullable=False),
)

erasures = sa.Table(
    # jobs that were erased, or whose entries were purged: leftovers of their blobs skip the quarantine
    "erasures",
    METADATA,
    sa.Column("job_id", sa.String(64), primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
)
