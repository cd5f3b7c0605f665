"""SQLite with one writing thread that commits whatever waits together, and one reading thread.

A transaction is one hop to the writing thread: accept + claim + finish take 1.1 ms against 3.1 ms when every statement
hops separately through aiosqlite (measured, 2 quiet cores). SQLAlchemy's AsyncEngine takes 3.9 times the processor
time, which is half a request more. Writes that arrive while one is being synced share the next commit: on a busy
machine, where waiting for the disk is what costs, 500 accepts at once take 0.4 s, not 4.3 s.
A row or two that need no sync are read, and written while nobody else writes, on the event loop itself: half of what a
thread takes, and on a busy machine, where a thread waits for a core twice, far less.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from shared.catalog.engines.database import R, Ts, explain, one
from shared.domain.errors import AfterimageError, ConfigurationError, UnavailableError
from shared.runtime.clock import Clock

BUSY_TIMEOUT_S = 5.0
GROUP = 64
"""Writes that may share a commit."""
CHECKPOINT_EVERY = 64
"""Commits of the writing thread; a picture is about four, and forty pages of 4 KB in the log."""
FAILURES = (sa.exc.DBAPIError, sqlite3.Error)


@dataclass(slots=True, eq=False)
class _Write:
    lazy: bool
    call: Callable[[sa.Connection], Any]
    future: asyncio.Future[Any]
    value: Any = None
    error: BaseException | None = None

    def run(self, connection: sa.Connection) -> None:
        self.value, self.error = None, None
        self.value = self.call(connection)

    def settle(self) -> None:
        if self.future.done():  # its caller was cancelled; the write stands
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.value)


def _durability(url: sa.URL) -> tuple[sa.URL, bool]:
    """The URL without our own parameter, and whether commits of jobs are synced."""
    wish = url.query.get("synchronous", "full")
    if wish not in ("full", "normal"):
        raise ConfigurationError(f"catalog_url: synchronous must be full or normal, not {wish!r}")
    return url.difference_update_query(["synchronous"]), wish == "full"


def _keep_a_log(connection: sqlite3.Connection) -> None:
    """Bring the file to WAL mode, which SQLite refuses at once, without its busy timeout, while somebody else does."""
    give_up = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").close()
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
        time.sleep(0.005)


def _transact(
    begin: str, connection: sa.Connection, operation: Callable[[sa.Connection, *Ts], R], args: tuple[*Ts]
) -> R:
    raw: Any = connection.connection.driver_connection
    with connection.begin():
        raw.execute(begin)
        return operation(connection, *args)


class SqliteDatabase:
    """One WAL file.

    synchronous=FULL for jobs: in WAL mode NORMAL does not sync at commit, so a power cut could undo a job whose client
    was already told that it is accepted. What can be rebuilt commits under NORMAL. `?synchronous=normal` in the URL
    gives that promise up everywhere, for a disk whose syncs are slow; a killed process loses nothing either way.
    """

    process_local = True

    def __init__(self, url: sa.URL, clock: Clock) -> None:
        url, self._durable = _durability(url)
        self._where = url.database or ":memory:"
        in_memory = url.database in (None, "", ":memory:")
        self._engine = sa.create_engine(
            url.set(drivername="sqlite"),
            poolclass=sa.StaticPool if in_memory else sa.NullPool,
            connect_args={"check_same_thread": False, "timeout": BUSY_TIMEOUT_S, "isolation_level": None},
        )

        def configure(connection: Any, _record: object) -> None:
            # isolation_level None: we say BEGIN ourselves, because the driver's own implicit one comes too late
            connection.create_function("now_s", 0, clock.now)
            _keep_a_log(connection)
            for pragma in ("synchronous = FULL", "foreign_keys = ON", "cache_size = -16000"):
                connection.execute(f"PRAGMA {pragma}").close()
            # not within a commit that somebody waits for: _checkpoint does it
            connection.execute("PRAGMA wal_autocheckpoint = 0").close()

        sa.event.listen(self._engine, "connect", configure)
        self._writer = ThreadPoolExecutor(1, "catalog-writer")
        self._reader = self._writer if in_memory else ThreadPoolExecutor(1, "catalog-reader")
        self._writing: sa.Connection | None = None
        self._reading: sa.Connection | None = None
        self._near: sa.Connection | None = None
        """The event loop's own: it waits for nobody."""
        self._lazy: bool | None = False
        """As the connection is set; None: not known."""
        self._waiting: deque[_Write] = deque()
        self._commits = 0
        """Since the last checkpoint."""
        self._closed = False

    # ---- on the writing thread ----

    def _drain(self) -> None:
        self._write_group()
        self._checkpoint()

    def _write_group(self) -> None:
        group: list[_Write] = []
        while self._waiting and len(group) < GROUP:
            group.append(self._waiting.popleft())
        if not group:  # they shared an earlier commit
            return
        self._try(group)
        for write in group:
            with suppress(RuntimeError):  # its loop is gone, and so is whoever asked
                write.future.get_loop().call_soon_threadsafe(write.settle)

    def _checkpoint(self) -> None:
        """From the log into the database, once whoever waited for the last commit has its answer."""
        if self._commits < CHECKPOINT_EVERY or self._writing is None:
            return
        self._commits = 0
        raw: Any = self._writing.connection.driver_connection
        with suppress(sqlite3.Error):  # a full disk: the log grows on until there is room
            raw.execute("PRAGMA wal_checkpoint(PASSIVE)").close()

    def _try(self, group: list[_Write]) -> None:
        try:
            self._commit(group)
        except FAILURES as error:
            if len(group) == 1:
                group[0].error = explain(error, self._where)
            else:  # what one of them may have broken, the others get again without it
                for write in group:
                    self._try([write])
        except BaseException as error:  # a bug of ours, or no memory: each caller must get an error all the same
            self._broken(group, error)

    def _broken(self, group: list[_Write], error: BaseException) -> None:
        """Nothing of the group was committed as far as we know, and the connection is not to be trusted."""
        for write in group:
            write.error = AfterimageError(f"{self._where}: not written ({error!r})")
            write.error.__cause__ = error
        connection, self._writing, self._lazy = self._writing, None, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    def _commit(self, group: list[_Write]) -> None:
        """One transaction; a write that raises something of its own takes only itself back."""
        if self._writing is None:
            self._writing = self._engine.connect()
        raw: Any = self._writing.connection.driver_connection
        lazy = not self._durable or all(write.lazy for write in group)
        if lazy is not self._lazy:
            raw.execute(f"PRAGMA synchronous = {'NORMAL' if lazy else 'FULL'}").close()
            self._lazy = lazy
        self._commits += 1
        with self._writing.begin():
            raw.execute("BEGIN IMMEDIATE")
            for write in group:
                raw.execute("SAVEPOINT one")
                try:
                    write.run(self._writing)
                except FAILURES:
                    raise
                except BaseException as error:
                    write.error = error
                    raw.execute("ROLLBACK TO one")
                raw.execute("RELEASE one")

    # ---- on the reading thread ----

    def _read(self, operation: Callable[[sa.Connection, *Ts], R], args: tuple[*Ts]) -> R:
        try:
            if self._reading is None:
                self._reading = self._engine.connect()
            return _transact("BEGIN", self._reading, operation, args)
        except FAILURES as error:
            raise explain(error, self._where) from error

    # ---- on the event loop ----

    def _here(self, begin: str, operation: Callable[[sa.Connection, *Ts], R], args: tuple[*Ts]) -> R:
        if self._near is None:
            self._near = self._engine.connect()
            for pragma in ("busy_timeout = 0", "synchronous = NORMAL"):
                self._near.exec_driver_sql(f"PRAGMA {pragma}").close()
            self._near.rollback()
        return _transact(begin, self._near, operation, args)

    @property
    def _in_memory(self) -> bool:
        """One connection, and one thread that uses it."""
        return self._reader is self._writer

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError(f"{self._where}: the catalog is closed")

    async def read(self, operation: Callable[[sa.Connection, *Ts], R], *args: *Ts, row: bool = False) -> R:
        if self._in_memory:
            return await self.write(operation, *args, durable=False)
        self._check_open()
        if row:
            with suppress(*FAILURES):  # the thread tries again, and says what is wrong
                return self._here("BEGIN", operation, args)
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._read, operation, args)

    async def write(
        self, operation: Callable[[sa.Connection, *Ts], R], *args: *Ts, durable: bool = True, row: bool = False
    ) -> R:
        self._check_open()
        if row and not (durable or self._waiting or self._in_memory):
            with suppress(*FAILURES):  # somebody is writing: the thread waits, and says what is wrong
                return self._here("BEGIN IMMEDIATE", operation, args)
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Write(not durable, lambda connection: operation(connection, *args), future))
        self._writer.submit(self._drain)
        return await future

    async def ping(self) -> None:
        await self.read(one, row=True)

    def _hang_up(self) -> None:
        for connection in (self._near, self._reading, self._writing):
            if connection is not None:
                connection.close()
        self._engine.dispose()

    async def close(self) -> None:
        """Waits for what was asked before."""
        if self._closed:
            return
        self._closed = True
        if not self._in_memory:
            await asyncio.to_thread(self._reader.shutdown)
        await asyncio.get_running_loop().run_in_executor(self._writer, self._hang_up)
        await asyncio.to_thread(self._writer.shutdown)
