"""A look at a catalog that creates, migrates and writes nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from shared.catalog.engines.database import one
from shared.catalog.engines.opening import open_database
from shared.catalog.keys import Keys
from shared.catalog.migrate import HEAD, revision, unknown_revision
from shared.domain.errors import CatalogVersionError
from shared.domain.identity import ApiKey
from shared.runtime.clock import SystemClock
from shared.runtime.probes import Probe


@dataclass(frozen=True, slots=True)
class _Answers:
    server: str
    revision: str
    round_trip_s: float
    ahead_s: float | None


def unchanging(url: str) -> str:
    """Return the URL that opens an SQLite catalog without changing its folder; empty if the file does not exist.

    The URL of a server is returned unchanged. Reading a file in WAL mode makes two files beside it, unless a process
    that has it open made them, or the file is declared immutable.
    """
    if not url.startswith("sqlite"):
        return url
    parsed = sa.make_url(url)
    path = Path(parsed.database or "")
    if not path.is_file():
        return ""
    mode = "mode=ro" if Path(f"{path}-wal").exists() else "immutable=1"
    return f"{parsed.drivername}:///{path.absolute().as_uri()}?{mode}&uri=true"


async def probe_catalog(url: str) -> Probe | None:
    """Ask the catalog for its version, revision and clock; return None where an SQLite file does not exist yet."""
    if not (looking := unchanging(url)):
        return None
    database = open_database(looking, SystemClock())
    try:
        answers = await database.read(_ask)
    finally:
        await database.close()
    found, warnings, wrong = f"catalog at revision {answers.revision}", [], ""
    if not answers.revision:
        found = "no catalog yet, the first start makes it"
    elif answers.revision > HEAD:
        wrong = str(unknown_revision(answers.revision))
    elif answers.revision < HEAD:
        warnings.append(
            f"the next start migrates it to {HEAD}, after which older services refuse it: stop them first, and back up"
        )
    return Probe(answers.server, answers.round_trip_s, found, tuple(warnings), wrong, answers.ahead_s)


async def look_at_keys(url: str) -> list[ApiKey]:
    """Return every API key, oldest first; none where there is no catalog yet. Raises UnavailableError, and
    CatalogVersionError for a catalog of another revision."""
    if not (looking := unchanging(url)):
        return []
    database = open_database(looking, SystemClock())
    try:
        found = await database.read(revision)
        if found and found != HEAD:
            raise CatalogVersionError(f"the catalog is at revision {found!r}, not {HEAD!r}")
        return await Keys(database).all() if found else []
    finally:
        await database.close()


def _ask(connection: sa.Connection) -> _Answers:
    """Run the questions on one connection; the first one prepares the connection, and is not timed."""
    local = connection.dialect.name == "sqlite"
    one(connection)
    begun = time.monotonic()
    one(connection)
    took = time.monotonic() - begun
    if local:
        version = connection.exec_driver_sql("SELECT sqlite_version()").scalar_one()
        return _Answers(f"SQLite {version}", revision(connection), took, None)
    version = str(connection.exec_driver_sql("SHOW server_version").scalar_one()).split(" ")[0]
    now = "SELECT extract(epoch FROM clock_timestamp())::float8"
    connection.exec_driver_sql(now).scalar_one()  # prepared
    at, begun = time.time(), time.monotonic()
    server_s = float(connection.exec_driver_sql(now).scalar_one())
    ahead = server_s - (at + (time.monotonic() - begun) / 2)
    return _Answers(f"PostgreSQL {version}", revision(connection), took, ahead)
