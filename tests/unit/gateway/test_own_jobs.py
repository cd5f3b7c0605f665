"""Lists of jobs: a tenant reads few at a time, so that the catalog has time for all others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from services.gateway.caller import Caller
from services.gateway.own_jobs import LISTS_AT_ONCE, own_jobs


class Slow:
    """Jobs whose lists never end."""

    def __init__(self) -> None:
        self.reads = list[str]()

    async def list(self, *, tenant: str, **page: Any) -> Any:
        self.reads.append(tenant)
        await asyncio.Event().wait()


async def test_a_flood_of_lists_holds_up_no_other_tenant(tmp_path: Path) -> None:
    """The keys were read behind them: a revoked key that flooded went on."""
    jobs: Any = Slow()
    asked = [own_jobs(jobs, Caller(tenant), tmp_path) for tenant in [*["acme"] * 20, "rival"]]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in asked]
        await asyncio.sleep(0)
        assert jobs.reads == ["acme"] * LISTS_AT_ONCE + ["rival"]
        tasks[0].cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert jobs.reads.count("acme") == LISTS_AT_ONCE + 1
        for task in tasks:
            task.cancel()
