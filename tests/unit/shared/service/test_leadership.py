"""A leader's lease while the catalog is away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

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
