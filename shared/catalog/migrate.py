"""Migrates a catalog to this version's revision in one transaction; refuses a newer catalog."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from shared.domain.errors import CatalogVersionError

HEAD = "0015"
"""The newest revision in migrations/versions (a test compares them).

The constant avoids an import of Alembic when an up-to-date catalog is opened.
"""

_LOCK = 0x41667465  # one migration at a time on PostgreSQL; on SQLite, BEGIN IMMEDIATE ensures this


def revision(connection: sa.Connection) -> str:
    """Return the catalog's revision; empty for a new database."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return ""
    return connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() or ""


def unknown_revision(before: str) -> CatalogVersionError:
    """Return the error for a catalog at a revision that this version does not know."""
    return CatalogVersionError(
        f"the catalog is at revision {before!r}, which this Afterimage does not know (its newest is {HEAD!r}): "
        "a newer version wrote it. Run that version or a newer one, or point catalog_url at another catalog"
    )


def migrate(connection: sa.Connection, target: str = "head") -> None:
    """Migrate up or down to `target`; raise CatalogVersionError for a revision that this version does not know."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    before = revision(connection)
    if before == HEAD and target in ("head", HEAD):
        return

    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    scripts = ScriptDirectory.from_config(config)
    known = [script.revision for script in scripts.walk_revisions("base", "heads")]  # newest first
    if before and before not in known:
        raise unknown_revision(before)
    if target == "base" or (before and target in known and known.index(target) > known.index(before)):
        command.downgrade(config, target)
    else:
        command.upgrade(config, target)
