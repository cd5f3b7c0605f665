"""A lease has one holder, until it is given up or runs out."""

from __future__ import annotations

import asyncio

from shared.catalog import Catalog


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
