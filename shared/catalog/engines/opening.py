"""Opens the database of a catalog URL; the driver is imported only then."""

from __future__ import annotations

import sqlalchemy as sa

from shared.catalog.engines.database import Database
from shared.domain.errors import ConfigurationError
from shared.runtime.clock import Clock


def open_database(url: str, clock: Clock) -> Database:
    """Return the database for the URL's scheme; raise ConfigurationError for unsupported schemes."""
    try:
        parsed = sa.make_url(url)
    # the URL may hold a password, so neither the URL nor its error is quoted
    except (sa.exc.ArgumentError, ValueError):
        rule = "must be a database URL: sqlite+aiosqlite:///path or postgresql+asyncpg://user:password@host:port/name"
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
                f"catalog_url: scheme must be sqlite or postgresql (got {other!r}); "
                "use sqlite+aiosqlite:///path or postgresql+asyncpg://…"
            )


def place_of(url: str) -> str:
    """Return the catalog's location in readable form: a file path, or a server's URL without the password."""
    parsed = sa.make_url(url)
    return (parsed.database or "") if parsed.host is None else parsed.render_as_string(hide_password=True)
