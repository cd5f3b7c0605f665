"""A machine with a wrong clock: only the catalog sets the times of a row (docs/architecture.md, Delivery rules)."""

from __future__ import annotations

import pytest

from services.cli.embedded import all_services
from shared.client import AsyncClient
from shared.runtime.clock import SystemClock
from shared.runtime.settings import Settings
from shared.service import running
from tests import tiny
from tests.flows.house import SLOW


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
