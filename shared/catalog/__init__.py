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
from shared.catalog.jobs.jobs import Jobs
from shared.catalog.leases import FencedDatabase, Leases
from shared.catalog.migrate import migrate
from shared.catalog.profiles import Profiles
from shared.runtime.clock import Clock, SystemClock
from shared.runtime.datadir import OWNER_FILE, private_file, private_folder

__all__ = ["Catalog", "Custody", "Entries", "Jobs", "Leases", "Profiles", "Totals", "open_catalog", "place_of"]


class Catalog:
    """The rows behind every service; times are Unix seconds by the database's clock (SQLite: this process's)."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.process_local = database.process_local
        self.jobs = Jobs(database)
        self.entries = Entries(database)
        self.profiles = Profiles(database)
        self.leases = Leases(database)
        self.custody = Custody(database)

    def fenced(self, lease: str, holder: str) -> Catalog:
        """The same rows, written only while `holder` has that lease. In an embedded catalog, which nobody shares, the
        catalog itself."""
        return self if self.process_local else Catalog(FencedDatabase(self._database, lease, holder))

    def within(self, limit_s: float) -> Catalog:
        """The same rows, or UnavailableError after `limit_s`; an embedded catalog, which is never away, as it is."""
        return self if self.process_local else Catalog(TimeoutDatabase(self._database, limit_s))

    async def ping(self) -> None:
        """Returns when the database answers; UnavailableError when it is away."""
        await self._database.ping()

    async def close(self) -> None:
        await self._database.close()


async def open_catalog(url: str, *, clock: Clock | None = None) -> Catalog:
    """`sqlite+aiosqlite:///path` (made when missing; without a path: in memory) or `postgresql+asyncpg://…`.

    Migrates an older catalog first. CatalogVersionError for a newer one, ConfigurationError for what is no catalog.
    `clock` is the SQLite catalog's clock.
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
    """Make the file before SQLite does, with the mode 0600, which its log takes over; tighten those that are there."""
    with suppress(OSError):  # SQLite says what is wrong
        private_folder(path.parent, tighten=False)
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, OWNER_FILE))
        for end in ("", "-wal", "-shm"):
            private_file(f"{path}{end}")
