"""A machine with a wrong clock: only the catalog sets the times of a row (docs/architecture.md, Delivery rules)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from services.cli.embedded import all_services
from shared.client import AsyncClient
from shared.domain.types import PlanSource
from shared.runtime.clock import SystemClock
from shared.runtime.settings import Settings
from shared.service import running
from tests import tiny
from tests.flows.house import SLOW, house


class Ahead(SystemClock):
    """As on a machine that nobody set: an hour from the catalog's."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def now(self) -> float:
        return super().now() + self._seconds


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
async def test_a_deadline_does_not_care_what_time_a_machine_thinks_it_is(settings: Settings, seconds: float) -> None:
    encoder = str(tiny.build_clip(settings.data_dir.parent / "models") / "clip")
    changed = settings.model_copy(update={"large": SLOW, "encoder": encoder})
    async with (
        running(all_services(), changed, clock=Ahead(seconds)) as process,
        AsyncClient(process.address) as client,
    ):
        picture = await client.generate("in time", steps=5, deadline_s=60.0, drop_if_late=True)
    assert picture.steps_run == 5
    assert 0 <= picture.timings.total_s < 60
    assert 0 <= picture.timings.queue_s < 60


@pytest.mark.parametrize("seconds", [600.0, -600.0])
async def test_a_cache_over_a_clock_ten_minutes_off_keeps_what_it_has(
    settings: Settings, seconds: float, tmp_path: Path
) -> None:
    """The collector compares its own clock with the times of blobs, which another machine may have set."""
    encoder = str(tiny.build_clip(tmp_path) / "clip")
    changed = settings.model_copy(
        update={"large": SLOW, "encoder": encoder, "lease_s": 1.0, "sweep_s": 0.2, "call_timeout_s": 10.0}
        | {"quarantine_s": 0.0}  # or nothing would be deleted, whatever the clock
    )
    async with house(changed, clock=Ahead(seconds)) as it:
        made = await it.generate("a red cube", seed=1)
        running = asyncio.create_task(it.generate("a blue ball", seed=2, steps=80, cache="off"))
        maintainer: Any = next(one for one in it.process.services if one.name == "cache_maintainer")
        found = await maintainer._collector.collect(confirmed=True)
        assert (found.unnamed, found.deleted) == (0, 0)
        await maintainer._expire()
        assert (await running).steps_run == 80  # longer than a lease, and claimed once
        assert (await it.backends.catalog.jobs.get((await running).job.id)).attempt == 1
        assert (await it.generate("a red cube", seed=1)).plan.source is PlanSource.EXACT
        assert (await it.client.get_picture(made.job.id)).png == made.png
