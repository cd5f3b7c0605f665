"""Which database a catalog's URL means; its driver is imported only then."""

from __future__ import annotations

import sqlalchemy as sa

from shared.catalog.engines.database import Database
from shared.domain.errors import ConfigurationError
from shared.runtime.clock import Clock


def open_database(url: str, clock: Clock) -> Database:
    """By the URL's scheme; ConfigurationError for one that no catalog speaks."""
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # the URL may hold a password: neither it nor its error is quoted
        rule = (
            "is not a database URL; use sqlite+aiosqlite:///path or postgresql+asyncpg://user:password@host:port/name"
        )
        raise ConfigurationError(f"catalog_url: {rule}") from None
    match parsed.get_backend_name():
        case "sqlite":
            from shared.catalog.engines.sqlite import SqliteDatabase

            return SqliteDatabase(parsed, clock)
        case "postgresql":
            from shared.catalog.engines.postgresql import PostgresqlDatabase

            return PostgresqlDatabase(parsed.set(drivername="postgresql+asyncpg"))
        case other:
            raise ConfigurationError(
                f"catalog_url: no catalog speaks {other!r}; use sqlite+aiosqlite:///path or postgresql+asyncpg://…"
            )


def place_of(url: str) -> str:
    """Where a catalog is, for people: a file's path, or the URL of a server without its password."""
    parsed = sa.make_url(url)
    return (parsed.database or "") if parsed.host is None else parsed.render_as_string(hide_password=True)
