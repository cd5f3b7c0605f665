"""The soak: what counts as growth, requests of every kind against a small service, and what a sample reads."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from bench import soak
from shared.runtime.settings import Settings
from tests.flows.house import house


def test_a_figure_that_grows_or_once_was_far_larger_is_not_flat() -> None:
    filled = [{"open files": 30.0 + n % 3, "filled": min(100.0 * n, 800.0)} for n in range(40)]
    rows = [{"rows": 100.0 * n, "rose and fell": 100.0 * min(n, 39 - n)} for n in range(40)]
    found = soak.quarters([{"at_s": 5.0 * n, "sent": n, **filled[n], **rows[n]} for n in range(40)])
    flat = {name: one["flat"] for name, one in found.items()}
    assert flat == {"open files": True, "filled": True, "rows": False, "rose and fell": False}
    assert (found["rows"]["third_quarter"], found["rows"]["last_quarter"]) == (2450.0, 3450.0)


async def test_requests_of_every_kind_end_as_they_should(settings: Settings, tmp_path: Path) -> None:
    given = {name: soak.SETTINGS[name] for name in ("large", "picture_max_count")}
    async with house(settings.model_copy(update=given)) as here:
        users = soak.Users(here.client, 0)
        await asyncio.gather(*(users.send(number) for number in range(60)))
        held = soak.sampled(os.getpid(), settings.data_dir)
    assert users.wrong == {}
    assert users.ended.total() == 60
    assert users.ended.keys() >= {"from noise", "refused", "read"}
    assert users.ended["cancelled"] + users.ended["dropped"] + users.ended["finished first"] >= 5
    assert held["rows of jobs"] >= 40
    assert held["open files"] > 3
    assert held["catalog, MiB"] > 0
    samples = [{"at_s": float(n), "sent": float(n), **held, "threads": n} for n in range(8)]
    soak.plot(samples, tmp_path / "soak.png")
    assert (tmp_path / "soak.png").stat().st_size > 5000
