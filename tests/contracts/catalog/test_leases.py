"""A lease has one holder, until it is given up or runs out."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import sqlalchemy as sa

from shared.catalog import Catalog
from shared.catalog.leases import FencedDatabase
from shared.domain.errors import UnavailableError
from tests.contracts.nouns import an_entry


async def test_one_holder_at_a_time(catalog: Catalog, replica: Catalog) -> None:
    assert await catalog.leases.take("cache", "a", 60.0)
    assert not await replica.leases.take("cache", "b", 60.0)
    assert await replica.leases.take("other", "b", 60.0)
    assert await catalog.leases.take("cache", "a", 60.0)  # renewed


async def test_given_up_it_is_free_at_once_but_only_by_its_holder(catalog: Catalog, replica: Catalog) -> None:
    await catalog.leases.take("cache", "a", 60.0)
    await replica.leases.give_up("cache", "b")
    assert not await replica.leases.take("cache", "b", 60.0)
    await catalog.leases.give_up("cache", "a")
    assert await replica.leases.take("cache", "b", 60.0)


async def test_it_runs_out(catalog: Catalog, replica: Catalog) -> None:
    await catalog.leases.take("cache", "a", 0.2)
    await asyncio.sleep(0.3)
    assert await replica.leases.take("cache", "b", 60.0)
    assert not await catalog.leases.take("cache", "a", 60.0)


async def test_many_that_ask_at_once(catalog: Catalog, replica: Catalog) -> None:
    asked = [one.leases.take("cache", str(at), 60.0) for at, one in enumerate((catalog, replica) * 5)]
    assert sum(await asyncio.gather(*asked)) == 1


async def test_whoever_lost_the_lease_writes_no_more(catalog: Catalog, replica: Catalog) -> None:
    fenced = catalog.fenced("cache", "a")
    if catalog.process_local:  # there is nobody else
        assert fenced is catalog
        return
    with pytest.raises(UnavailableError, match="lease 'cache': a does not hold it any more"):
        await fenced.entries.add(an_entry(id="never"), {})
    await catalog.leases.take("cache", "a", 60.0)
    assert await fenced.entries.add(an_entry(id="first"), {})
    await catalog.leases.take("cache", "a", 0.01)  # renewed for so short that it runs out
    await asyncio.sleep(0.1)
    assert await replica.leases.take("cache", "b", 60.0)
    refused = (
        fenced.entries.add(an_entry(id="second"), {}),
        fenced.entries.drop_states([("first", 5)]),
        fenced.entries.drop_entries(["first"]),
        fenced.jobs.drop_captured(["first"]),
        fenced.jobs.expire(0.0),
        fenced.custody.mark(["states/first/1/5"]),
        fenced.custody.erase(["first"]),
    )
    for write in refused:
        with pytest.raises(UnavailableError, match="does not hold it any more"):
            await write
    assert set(await fenced.entries.by_ids(["first", "second", "never"])) == {"first"}  # reading is free


async def test_a_lease_does_not_change_hands_in_the_middle_of_a_write(catalog: Catalog, replica: Catalog) -> None:
    if catalog.process_local:
        pytest.skip("an embedded catalog has one writer")
    ended: list[float] = []
    writing = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(connection: sa.Connection) -> Any:
        """Longer than the lease, which was live when the write began."""
        loop.call_soon_threadsafe(writing.set)
        slept = connection.exec_driver_sql("SELECT pg_sleep(1.6)").scalar()
        ended.append(time.monotonic())
        return slept

    async def write() -> None:
        while not writing.is_set():  # on a busy machine the lease may run out before the write
            await catalog.leases.take("cache", "a", 1.2)
            try:
                await FencedDatabase(catalog._database, "cache", "a").write(slow)
            except UnavailableError:
                assert not writing.is_set()

    async def take_over() -> float:
        await asyncio.wait_for(writing.wait(), 30.0)
        while not await replica.leases.take("cache", "b", 60.0):
            await asyncio.sleep(0.02)
        return time.monotonic()

    _, taken_at = await asyncio.gather(write(), take_over())
    assert taken_at >= ended[0]
