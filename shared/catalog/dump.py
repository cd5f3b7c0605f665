"""A consistent copy of a catalog as one file, made while services write, and a catalog from such a file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
from collections.abc import Mapping
from pathlib import Path

import sqlalchemy as sa

from shared.catalog.engines.opening import open_database, place_of
from shared.catalog.tables import jobs
from shared.domain.errors import ConfigurationError
from shared.runtime.clock import SystemClock
from shared.runtime.datadir import private_folder


def dump_name(url: str) -> str:
    """Return the name of this catalog's dump: SQLite's file, or the custom format of `pg_dump`."""
    return "catalog.sqlite3" if _is_sqlite(url) else "catalog.dump"


async def dump(url: str, path: Path) -> None:
    """Write the catalog as it is at one moment to `path`, a file that only its owner may read."""
    os.close(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600))
    if _is_sqlite(url):
        await asyncio.to_thread(_copied, Path(place_of(url)), path)
    else:
        await _run(url, "pg_dump", "--format=custom", "--no-owner", "--no-privileges", f"--file={path}")


async def check_new(url: str) -> None:
    """Raise ConfigurationError where a catalog is there already, which `load` must not replace."""
    if _is_sqlite(url):
        # a log without its catalog would be applied to the next one
        there = await asyncio.to_thread(
            lambda: any(os.path.exists(place_of(url) + end) for end in ("", "-wal", "-shm"))
        )
    else:
        database = open_database(url, SystemClock())
        try:
            there = await database.read(_has_jobs)
        finally:
            await database.close()
    if there:
        raise ConfigurationError(f"catalog_url: {place_of(url)} has a catalog; name a new place, or move that one away")


async def load(url: str, path: Path) -> None:
    """Make the catalog from a dump. The place must be new (see `check_new`)."""
    if _is_sqlite(url):
        await asyncio.to_thread(_placed, path, Path(place_of(url)))
    else:
        await _run(url, "pg_restore", "--no-owner", "--exit-on-error", "--single-transaction", str(path))


def _is_sqlite(url: str) -> bool:
    parsed = sa.make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return False
    if parsed.database in (None, "", ":memory:"):
        raise ConfigurationError("catalog_url: must be a file, or a PostgreSQL, to be backed up (it is in memory)")
    return True


def _has_jobs(connection: sa.Connection) -> bool:
    return sa.inspect(connection).has_table(jobs.name)


def _copied(source: Path, target: Path) -> None:
    """Copy a catalog's rows, as they are at one moment, to an empty file. The catalog's writers go on in its log. Its
    free pages, which may hold erased prompts, stay behind."""
    try:
        with contextlib.closing(
            sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=30.0)
        ) as read:
            said = read.execute("PRAGMA quick_check(1)").fetchone()[0]
            if said == "ok":
                read.execute("VACUUM INTO ?", (str(target),))
                with target.open("rb") as written:
                    os.fsync(written.fileno())  # SQLite does not
    except sqlite3.Error as error:
        raise ConfigurationError(f"catalog_url: {source} cannot be copied to {target} ({error})") from error
    if said != "ok":
        raise ConfigurationError(f"catalog_url: {source} is damaged ({said}); restore it from a backup")


def _placed(dumped: Path, path: Path) -> None:
    """Copy under another name first: a start before the end must not find half a catalog."""
    private_folder(path.parent, tighten=False)
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    os.close(os.open(part, os.O_CREAT | os.O_EXCL, 0o600))
    _copied(dumped, part)
    part.rename(path)


async def _run(url: str, program: str, *words: str) -> None:
    """Run a program of PostgreSQL's client on the catalog's database; its error becomes a ConfigurationError."""
    if shutil.which(program) is None:
        raise ConfigurationError(
            f"{program}: not on PATH; install PostgreSQL's client (apt-get install postgresql-client), of the server's "
            "version or newer"
        )
    process = await asyncio.create_subprocess_exec(
        program, *words, f"--dbname={sa.make_url(url).database}", env=_environment(url),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said = (await process.communicate())[1].decode(errors="replace").strip()
    if process.returncode:
        raise ConfigurationError(f"{program}: {said[-500:]}")


def _environment(url: str) -> Mapping[str, str]:
    """Return the environment that names the server: a password in an argument would be in the list of processes."""
    parsed = sa.make_url(url)
    named = {
        "PGHOST": parsed.host, "PGPORT": parsed.port and str(parsed.port), "PGUSER": parsed.username,
        "PGPASSWORD": parsed.password, "PGSSLMODE": parsed.query.get("ssl"),
    }  # fmt: skip
    return {**os.environ, **{name: str(value) for name, value in named.items() if value}}
