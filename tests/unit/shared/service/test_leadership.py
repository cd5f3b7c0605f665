"""A leader's lease while the catalog is away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shared.domain.errors import UnavailableError
from shared.runtime.clock import ManualClock
from shared.service.leadership import Leadership


async def test_a_catalog_that_stays_away_is_said_once_and_again_the_next_time(
    logs: list[dict[str, Any]],
) -> None:
    async def take(*_: object) -> bool:
        if away:
            raise UnavailableError("away")
        return True

    away = True
    catalog: Any = SimpleNamespace(process_local=False, leases=SimpleNamespace(take=take))
    lease = Leadership("cache_maintainer", catalog, ManualClock(), 15.0)
    assert not await lease.renew()
    assert not await lease.renew()
    assert len(logs) == 1
    away = False
    assert await lease.renew()
    away = True
    assert await lease.renew()  # still held
    assert [one["event"] for one in logs] == ["lease not renewed"] * 2


@pytest.mark.parametrize(
    ("answered", "later_s", "asked"),
    [(True, 1.0, ["monitor"]), (True, 15.0, []), (False, 1.0, ["monitor"])],
    ids=["held", "ran out", "a take without an answer"],
)
async def test_a_planned_stop_ends_the_lease_that_the_catalog_may_hold(
    answered: bool, later_s: float, asked: list[str]
) -> None:
    given_up = list[str]()

    async def take(*_: object) -> bool:
        if not answered:
            raise UnavailableError("no answer")
        return True

    async def give_up(name: str, _holder: str) -> None:
        given_up.append(name)

    catalog: Any = SimpleNamespace(process_local=False, leases=SimpleNamespace(take=take, give_up=give_up))
    clock = ManualClock()
    lease = Leadership("monitor", catalog, clock, 15.0)
    await lease.give_up()
    assert given_up == []  # never asked for
    await lease.renew()
    clock.advance(later_s)
    await lease.give_up()
    assert given_up == asked
