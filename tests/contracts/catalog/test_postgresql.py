"""What is special about the catalog on a server: durability by kind of write, restarts, and who waits how long."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from shared.catalog import Catalog, open_catalog
from shared.catalog.engines import postgresql
from shared.catalog.engines.database import Database
from shared.catalog.engines.opening import open_database
from shared.catalog.engines.prepared import Prepared
from shared.domain.errors import AfterimageError, ConfigurationError, UnavailableError
from shared.runtime.clock import SystemClock
from tests.contracts.nouns import a_job, a_result
from tests.contracts.servers import server_of

pytestmark = pytest.mark.parametrize("catalog_url", ["postgresql"], indirect=True)


@pytest.fixture
async def database(catalog_url: str) -> AsyncIterator[Database]:
    opened = open_database(catalog_url, SystemClock())
    yield opened
    await opened.close()


def _setting(connection: sa.Connection, name: str) -> str:
    return str(connection.exec_driver_sql(f"SHOW {name}").scalar_one())


async def test_jobs_wait_for_the_disk_and_what_can_be_rebuilt_does_not(database: Database) -> None:
    assert await database.write(_setting, "synchronous_commit") == "on"
    assert await database.write(_setting, "synchronous_commit", durable=False) == "off"
    assert await database.write(_setting, "synchronous_commit") == "on"


async def test_a_restart_of_the_server_costs_at_most_what_was_in_flight(catalog: Catalog) -> None:
    before, _ = await catalog.jobs.accept(a_job(), key_lifetime_s=60.0)
    await asyncio.gather(*(catalog.jobs.get(before.id) for _ in range(8)))  # eight idle connections, about to die
    server = server_of("postgresql")
    await asyncio.to_thread(server.kill)
    start = time.monotonic()
    with pytest.raises(UnavailableError):
        await catalog.jobs.get(before.id)
    assert time.monotonic() - start < 2.0
    await asyncio.to_thread(server.start)
    assert await catalog.jobs.get(before.id) == before  # nothing committed was lost, and no dead connection is met
    claimed = await catalog.jobs.claim(before.id, "w1", 60.0)
    assert claimed is not None
    assert claimed.attempt == 1
    assert await catalog.jobs.finish(before.id, 1, a_result(before.id))


def _kill_own(connection: sa.Connection, seen: list[int]) -> int:
    """Dies under the first try's feet, as it would with the server or the network."""
    seen.append(1)
    if len(seen) == 1:
        connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")
    return len(seen)


async def test_a_connection_that_dies_before_the_commit_costs_a_second_try(database: Database) -> None:
    seen: list[int] = []
    assert await database.write(_kill_own, seen) == 2


async def test_a_statement_that_commits_itself_meets_no_dead_connection_and_is_never_sent_twice(
    database: Database,
) -> None:
    def pid(connection: sa.Connection) -> int:
        return int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())

    first = await database.write(pid, row=True)
    kill = f"SELECT pg_terminate_backend({first})"
    await database.write(lambda connection: connection.exec_driver_sql(kill), durable=False)
    await asyncio.sleep(0.2)
    assert await database.write(pid, row=True) != first
    seen: list[int] = []
    with pytest.raises(UnavailableError):
        await database.write(_kill_own, seen, row=True)
    assert len(seen) == 1


PID = Prepared(sa.select(sa.func.pg_backend_pid().label("pid")))
KILL = Prepared(sa.select(sa.func.pg_terminate_backend(sa.func.pg_backend_pid())))
NAP = Prepared(sa.select(sa.func.pg_sleep(sa.bindparam("seconds", type_=sa.Double))))
NONSENSE = Prepared(sa.select(sa.bindparam("one", type_=sa.Integer) / 0))


def _first(connection: sa.Connection, prepared: Prepared, parameters: dict[str, Any]) -> Any:
    return prepared.first(connection, parameters)


async def test_a_statement_run_by_the_driver_alone_fails_as_any_other(database: Database) -> None:
    with pytest.raises(UnavailableError) as gone:
        await database.write(_first, KILL, {}, row=True)
    assert gone.value.retry_after_s
    with pytest.raises(UnavailableError):
        await database.read(_first, KILL, {}, row=True)  # three times
    with pytest.raises(AfterimageError, match="division by zero") as wrong:
        await database.read(_first, NONSENSE, {"one": 1}, row=True)
    assert not isinstance(wrong.value, UnavailableError)
    assert (await database.read(_first, PID, {}, row=True)).pid > 0


async def test_a_connection_on_which_nobody_waits_for_the_answer_is_not_used_again(database: Database) -> None:
    before = (await database.read(_first, PID, {}, row=True)).pid
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await database.write(_first, NAP, {"seconds": 30.0}, row=True)
    assert (await database.read(_first, PID, {}, row=True)).pid != before


async def test_within_a_transaction_such_a_statement_is_part_of_it(database: Database) -> None:
    def both(connection: sa.Connection) -> bool:
        began = _first(connection, Prepared(sa.select(sa.func.pg_current_xact_id().label("id"))), {})
        return bool(began.id == connection.exec_driver_sql("SELECT pg_current_xact_id()").scalar_one())

    assert await database.write(both)
    assert not await database.write(both, row=True)


async def test_what_a_caller_waits_for_takes_one_round_trip(catalog: Catalog) -> None:
    sent: list[str] = []
    pool: Any = catalog._database

    def listen(connection: Any, _record: object) -> None:
        connection.driver_connection.add_query_logger(lambda query: sent.append(query.query))

    for engine in (pool._durable, pool._lazy):
        await engine.dispose()
        sa.event.listen(engine.sync_engine, "connect", listen)
    job, created = await catalog.jobs.accept(a_job(), idempotency_key="k", caller="c", body_hash="b")
    assert created
    assert await catalog.jobs.claim(job.id, "w1", 60.0)
    assert await catalog.jobs.finish(job.id, 1, a_result(job.id))
    await asyncio.sleep(0.1)  # the driver tells a moment later
    assert [statement.split()[0] for statement in sent] == ["WITH", "UPDATE", "WITH"]


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux gives up data that nobody acknowledges")
async def test_a_statement_that_was_given_up_is_not_sent_when_a_cut_network_is_back(database: Database) -> None:
    """On every kind of connection the system gives up after some seconds what it would send again for many minutes."""
    pool: Any = database
    for engine in (pool._durable, pool._lazy, pool._asking):
        async with engine.connect() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            ours = driver._transport.get_extra_info("socket")
            assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == postgresql.UNACKED_S * 1000


async def test_nobody_waits_for_a_connection_for_ever(catalog_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "POOL_S", 0.3)
    database = open_database(f"{catalog_url}?pool=3", SystemClock())

    def nap(connection: sa.Connection) -> Any:
        return connection.exec_driver_sql("SELECT pg_sleep(1.5)").scalar()

    sleeping = [asyncio.create_task(database.write(nap)) for _ in range(2)]  # and the third is for what can be rebuilt
    await asyncio.sleep(0.4)
    with pytest.raises(UnavailableError, match=r"busy for 0\.3 s"):
        await database.write(nap)
    await asyncio.gather(*sleeping)
    await database.close()


async def test_a_server_that_is_kept_busy_answers_whoever_asks_whether_it_is_there(catalog_url: str) -> None:
    catalog = Catalog(open_database(f"{catalog_url}?pool=2", SystemClock()))

    def nap(connection: sa.Connection) -> Any:
        return connection.exec_driver_sql("SELECT pg_sleep(2)").scalar()

    writes = [catalog._database.write(nap, durable=durable) for durable in (True, False) for _ in range(2)]
    sleeping = [asyncio.create_task(write) for write in writes]
    await asyncio.sleep(0.2)
    async with asyncio.timeout(1.5):
        await catalog.ping()
    assert not any(task.done() for task in sleeping)
    await asyncio.gather(*sleeping)
    await catalog.close()


async def test_a_server_that_is_not_there_says_so_at_once(catalog_url: str) -> None:
    start = time.monotonic()
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1"):
        await open_catalog(sa.make_url(catalog_url).set(port=9).render_as_string())
    assert time.monotonic() - start < 5.0


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"database": "nowhere"}, 'database "nowhere" does not exist'),
        ({"username": "no one"}, '"no one" does not exist'),
    ],
)
async def test_a_server_that_refuses_us_is_said_by_its_setting(
    catalog_url: str, change: dict[str, str], rule: str
) -> None:
    wrong = sa.make_url(catalog_url).set(**change).render_as_string(hide_password=False)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=f"^catalog_url: .*{rule}") as refused:
        await open_catalog(wrong)
    assert "catalog_url" not in refused.value.outside


async def test_the_pool_is_a_number(catalog_url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"catalog_url: pool .*'many'"):
        await open_catalog(f"{catalog_url}?pool=many")


@pytest.mark.parametrize(("pool", "at_most"), [("", postgresql.POOL), ("?pool=2", 2), ("?pool=7", 7)])
async def test_a_process_opens_no_more_connections_than_its_pool(catalog_url: str, pool: str, at_most: int) -> None:
    assert postgresql.POOL <= 10
    database = open_database(f"{catalog_url}{pool}", SystemClock())

    def nap(connection: sa.Connection) -> int:
        connection.exec_driver_sql("SELECT pg_sleep(0.05)")
        count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        return int(connection.exec_driver_sql(count).scalar_one())

    kinds = (database.write, partial(database.write, durable=False), database.read)
    seen = await asyncio.gather(*(kinds[n % 3](nap) for n in range(30)))
    assert max(seen) == at_most
    await database.close()
