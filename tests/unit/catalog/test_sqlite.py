"""What is special about the catalog in a file: one clock, damage, other tools that hold it, and its URL."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.config import Config
from alembic.script import ScriptDirectory

import shared.catalog
from shared.catalog import open_catalog
from shared.catalog.engines import sqlite
from shared.catalog.engines.opening import open_database
from shared.catalog.migrate import HEAD
from shared.domain.errors import AfterimageError, ConfigurationError, UnavailableError
from shared.runtime.clock import ManualClock
from tests.contracts.nouns import a_job


def test_head_is_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(shared.catalog.__file__).parent / "migrations"))
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


async def test_the_process_clock_is_the_catalogs(tmp_path: Path) -> None:
    clock = ManualClock(5000.0)
    catalog = await open_catalog(f"sqlite+aiosqlite:///{tmp_path / 'c.db'}", clock=clock)
    job, _ = await catalog.jobs.accept(a_job(), key_lifetime_s=60.0)
    assert job.created_at == 5000.0
    await catalog.jobs.claim(job.id, "w1", 10.0)
    clock.advance(9.0)
    assert await catalog.jobs.claim(job.id, "w2", 10.0) is None
    clock.advance(2.0)
    assert await catalog.jobs.claim(job.id, "w2", 10.0) is not None
    await catalog.close()


async def test_in_memory() -> None:
    catalog = await open_catalog("sqlite+aiosqlite://")
    job, _ = await catalog.jobs.accept(a_job(), key_lifetime_s=60.0)
    assert await catalog.jobs.get(job.id) == job
    assert catalog.process_local
    await catalog.close()
    await catalog.close()


async def test_commits_of_jobs_are_synced_and_those_of_the_cache_are_not(tmp_path: Path) -> None:
    opened = open_database(f"sqlite:///{tmp_path / 'c.db'}", ManualClock())

    def level(connection: sa.Connection) -> tuple[object, ...]:
        return tuple(
            connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("synchronous", "journal_mode", "foreign_keys")
        )

    full, normal = 2, 1
    assert await opened.write(level) == (full, "wal", 1)
    assert await opened.write(level, durable=False) == (normal, "wal", 1)
    assert await opened.write(level) == (full, "wal", 1)
    await opened.close()
    hurried = open_database(f"sqlite:///{tmp_path / 'c.db'}?synchronous=normal", ManualClock())
    assert await hurried.write(level) == (normal, "wal", 1)
    await hurried.close()
    with pytest.raises(ConfigurationError, match=r"catalog_url: synchronous .*'off'"):
        open_database("sqlite:///c.db?synchronous=off", ManualClock())


async def test_writes_that_share_a_commit_do_not_share_their_errors(tmp_path: Path) -> None:
    catalog = await open_catalog(f"sqlite+aiosqlite:///{tmp_path / 'c.db'}")
    key: dict[str, Any] = {"idempotency_key": "k", "caller": "a", "body_hash": "h"}
    first, _ = await catalog.jobs.accept(a_job(), **key, key_lifetime_s=60.0)

    async def outcome(write: Coroutine[Any, Any, Any]) -> str:
        try:
            await write
        except AfterimageError as error:
            return type(error).__name__
        return "written"

    def batch() -> list[Coroutine[Any, Any, Any]]:
        jobs = catalog.jobs
        return [
            jobs.accept(a_job(), key_lifetime_s=60.0),
            jobs.accept(a_job(), **{**key, "body_hash": "other"}, key_lifetime_s=60.0),
            jobs.accept(a_job(), key_lifetime_s=60.0),
            jobs.cancel("unknown"),
            jobs.accept(a_job(), key_lifetime_s=60.0),
        ]

    expected = ["written", "ConflictError", "written", "NotFoundError", "written"]
    assert await asyncio.gather(*map(outcome, batch())) == expected
    # an error of the database itself undoes the transaction; the others are committed again without it
    again = await asyncio.gather(*map(outcome, [*batch(), catalog.jobs.accept(first, key_lifetime_s=60.0)]))
    assert again == [*expected, "AfterimageError"]
    assert await catalog.jobs.queued() == 7
    await catalog.close()


async def test_a_write_whose_caller_went_away_stands(tmp_path: Path) -> None:
    catalog = await open_catalog(f"sqlite+aiosqlite:///{tmp_path / 'c.db'}")
    job = a_job()
    writing = asyncio.create_task(catalog.jobs.accept(job, key_lifetime_s=60.0))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing])
    await catalog.close()  # waits for it
    catalog = await open_catalog(f"sqlite+aiosqlite:///{tmp_path / 'c.db'}")
    assert (await catalog.jobs.get(job.id)).id == job.id
    await catalog.close()
    with pytest.raises(UnavailableError, match="closed"):
        await catalog.jobs.get(job.id)
    with pytest.raises(UnavailableError, match="closed"):
        await catalog.jobs.cancel(job.id)


@pytest.mark.parametrize("in_memory", [False, True])
async def test_a_bug_while_committing_reaches_whoever_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    url = "sqlite+aiosqlite://" if in_memory else f"sqlite+aiosqlite:///{tmp_path / 'c.db'}"
    catalog = await open_catalog(url)
    kept, _ = await catalog.jobs.accept(a_job(), key_lifetime_s=60.0)

    def breaks(*_: object) -> None:
        raise MemoryError("no room for the transaction")

    with monkeypatch.context() as broken:
        broken.setattr(sa.Connection, "begin", breaks)
        async with asyncio.timeout(5):
            waiting = [catalog.jobs.accept(a_job(), key_lifetime_s=60.0) for _ in range(3)]
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [AfterimageError] * 3
    assert "MemoryError" in str(outcomes[0])
    # a lazy and a synced write, on a connection that knows which it is
    assert await catalog.jobs.claim(kept.id, "w1", 60.0) is not None
    assert await catalog.jobs.release(kept.id, 1)
    assert await catalog.jobs.queued() == 1
    await catalog.close()


async def test_a_failed_transaction_leaves_nothing(tmp_path: Path) -> None:
    catalog = await open_catalog(f"sqlite+aiosqlite:///{tmp_path / 'c.db'}")
    job, _ = await catalog.jobs.accept(a_job(), idempotency_key="k", caller="a", body_hash="h", key_lifetime_s=60.0)
    with pytest.raises(Exception, match="UNIQUE"):
        await catalog.jobs.accept(job, idempotency_key="k2", caller="a", body_hash="h", key_lifetime_s=60.0)
    other, created = await catalog.jobs.accept(
        a_job(), idempotency_key="k2", caller="a", body_hash="h2", key_lifetime_s=60.0
    )
    assert created
    assert other.id != job.id
    await catalog.close()


async def test_what_is_no_catalog(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database, " * 100)
    with pytest.raises(ConfigurationError, match=r"catalog_url: .*text\.db"):
        await open_catalog(f"sqlite+aiosqlite:///{tmp_path / 'text.db'}")
    (tmp_path / "folder.db").mkdir()
    with pytest.raises(ConfigurationError, match=r"catalog_url: .*folder\.db"):
        await open_catalog(f"sqlite+aiosqlite:///{tmp_path / 'folder.db'}")
    with pytest.raises(ConfigurationError, match=r"catalog_url: .*'mysql'"):
        await open_catalog("mysql://host/db")
    with pytest.raises(ConfigurationError, match="catalog_url"):
        await open_catalog("nonsense")


async def test_a_catalog_that_something_else_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
    catalog = await open_catalog(f"sqlite+aiosqlite:///{tmp_path / 'c.db'}")
    job, _ = await catalog.jobs.accept(a_job(), key_lifetime_s=60.0)
    other = sqlite3.connect(tmp_path / "c.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(UnavailableError, match="locked"):
        await catalog.jobs.cancel(job.id)
    assert await catalog.jobs.get(job.id) == job  # reading goes on
    other.execute("ROLLBACK")
    other.close()
    await catalog.jobs.cancel(job.id)
    await catalog.close()


async def test_a_row_is_written_where_it_is_asked_for_unless_somebody_else_writes(tmp_path: Path) -> None:
    opened = open_database(f"sqlite:///{tmp_path / 'c.db'}", ManualClock())
    main, asked_in = threading.current_thread(), list[threading.Thread]()

    def make(connection: sa.Connection) -> None:
        connection.exec_driver_sql("CREATE TABLE kept (number INTEGER)")

    def keep(connection: sa.Connection, number: int) -> None:
        asked_in.append(threading.current_thread())
        connection.exec_driver_sql("INSERT INTO kept VALUES (?)", (number,))

    def refuse(connection: sa.Connection) -> None:
        keep(connection, 13)
        raise AfterimageError("no")

    def kept(connection: sa.Connection) -> list[int]:
        asked_in.append(threading.current_thread())
        return list(connection.exec_driver_sql("SELECT number FROM kept ORDER BY number").scalars())

    await opened.write(make)
    await opened.write(keep, 1, durable=False, row=True)
    with pytest.raises(AfterimageError, match="no"):
        await opened.write(refuse, durable=False, row=True)
    assert await opened.read(kept, row=True) == [1]
    assert set(asked_in) == {main}

    other = sqlite3.connect(tmp_path / "c.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    asked_in.clear()
    waiting = asyncio.create_task(opened.write(keep, 2, durable=False, row=True))
    await asyncio.sleep(0.05)  # the loop is free meanwhile
    assert await opened.read(kept, row=True) == [1]
    other.execute("ROLLBACK")
    other.close()
    await waiting
    assert await opened.read(kept) == [1, 2]
    assert main not in asked_in[1:]  # all but the row that was read
    await opened.close()
    with pytest.raises(UnavailableError):
        await opened.read(kept, row=True)


async def test_the_log_does_not_grow_for_ever(tmp_path: Path) -> None:
    opened = open_database(f"sqlite:///{tmp_path / 'c.db'}", ManualClock())

    def fill(connection: sa.Connection) -> None:
        connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS kept (bytes BLOB)")
        connection.exec_driver_sql("INSERT INTO kept VALUES (zeroblob(4000))")
        connection.exec_driver_sql("DELETE FROM kept")

    for _ in range(4 * sqlite.CHECKPOINT_EVERY):
        await opened.write(fill, durable=False)
        await opened.write(fill, durable=False, row=True)
    once = sqlite.CHECKPOINT_EVERY * 2 * 4 * 4096
    assert (tmp_path / "c.db-wal").stat().st_size < 2 * once
    await opened.close()


async def test_a_new_file_that_somebody_else_writes_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite3"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("CREATE TABLE theirs (id INTEGER)")  # SQLite refuses to change the file's mode now, without waiting
    opening = asyncio.create_task(open_catalog(f"sqlite+aiosqlite:///{path}"))
    await asyncio.sleep(0.2)
    assert not opening.done()
    other.execute("COMMIT")
    await (await asyncio.wait_for(opening, 20)).close()
    other.close()
