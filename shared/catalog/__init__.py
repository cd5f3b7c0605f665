"""The catalog: jobs, cache entries and profiles, in SQLite or PostgreSQL by URL."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sa

from shared.catalog.custody import Custody
from shared.catalog.engines.bounded import TimeoutDatabase
from shared.catalog.engines.database import Database
from shared.catalog.engines.opening import open_database, place_of
from shared.catalog.entries.entries import Entries, Totals
from shared.catalog.erasing import Erasing
from shared.catalog.jobs.jobs import Jobs
from shared.catalog.keys import Keys
from shared.catalog.leases import FencedDatabase, Leases
from shared.catalog.migrate import migrate
from shared.catalog.profiles import Profiles
from shared.runtime.clock import Clock, SystemClock
from shared.runtime.datadir import OWNER_FILE, private_file, private_folder

__all__ = ["Catalog", "Custody", "Entries", "Jobs", "Keys", "Leases", "Profiles", "Totals", "open_catalog", "place_of"]


class Catalog:
    """The rows behind every service. Times are Unix seconds by the database's clock (SQLite: this process's clock)."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.process_local = database.process_local
        self.jobs = Jobs(database)
        self.entries = Entries(database)
        self.profiles = Profiles(database)
        self.leases = Leases(database)
        self.custody = Custody(database)
        self.keys = Keys(database)
        self.erasing = Erasing(database)

    def fenced(self, lease: str, holder: str) -> Catalog:
        """Return the same catalog with writes that fail unless `holder` has that lease.

        An embedded catalog has a single process and returns itself.
        """
        return self if self.process_local else Catalog(FencedDatabase(self._database, lease, holder))

    def within(self, limit_s: float) -> Catalog:
        """Return the same catalog whose calls raise UnavailableError after `limit_s`.

        An embedded catalog is always reachable and returns itself.
        """
        return self if self.process_local else Catalog(TimeoutDatabase(self._database, limit_s))

    async def ping(self) -> None:
        """Return when the database answers; raise UnavailableError if the database is unreachable."""
        await self._database.ping()

    async def close(self) -> None:
        await self._database.close()


async def open_catalog(url: str, *, clock: Clock | None = None) -> Catalog:
    """Open `sqlite+aiosqlite:///path` (created if missing; in memory without a path) or `postgresql+asyncpg://…`.

    An older catalog is migrated first. Raise CatalogVersionError for a newer catalog, and ConfigurationError for any
    other database. `clock` is the SQLite catalog's clock.
    """
    database = open_database(url, clock or SystemClock())
    path = sa.make_url(url).database
    if database.process_local and path and path != ":memory:" and not path.startswith("file:"):
        _keep_private(Path(path))
    try:
        await database.write(migrate, "head")
    except BaseException:
        await database.close()
        raise
    return Catalog(database)


def _keep_private(path: Path) -> None:
    """Create the file before SQLite does, with mode 0600, which SQLite copies to its log; tighten existing files."""
    with suppress(OSError):  # SQLite reports the cause
        private_folder(path.parent, tighten=False)
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, OWNER_FILE))
        for end in ("", "-wal", "-shm"):
            private_file(f"{path}{end}")
