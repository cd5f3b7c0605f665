"""The data directory's file system becomes read-only, as ext4 does when its disk fails, or is so at the start."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shared.client import Accepted
from shared.domain.errors import ConfigurationError, UnavailableError
from shared.runtime.settings import Settings
from tests.disks import BreakableDisk
from tests.faults.test_full_disks import all_there, small
from tests.flows.house import House, house

__all__ = ["small"]


async def test_a_disk_that_becomes_read_only(small: Settings, tmp_path: Path) -> None:
    small = small.model_copy(update={"drain_s": 1.0})
    disk = BreakableDisk(tmp_path / "disk")
    with disk.mounted():
        async with house(small) as it:
            kept = await it.generate("a red cube", seed=1)
            stream = it.client.generate_stream("a blue ball", steps=100, seed=2, idempotency_key="blue")
            accepted = await anext(stream)
            assert isinstance(accepted, Accepted)
            disk.fail()
            await _nothing_is_written(it, "a green cone")
            await _nothing_is_written(it, "a red cube")  # not even the row of a repeat
            assert (await it.client.get_picture(kept.job.id)).png == kept.png
            await asyncio.sleep(4.0)  # by now its image is drawn, and cannot be stored
            await stream.aclose()
    disk.mend()
    refused = pytest.raises(ConfigurationError, match=r"data_dir: .* cannot be used .Read-only file system")
    with disk.mounted("ro"), refused:
        async with house(small):
            pass
    with disk.mounted():
        async with house(small) as it:
            drawn = await it.client.generate("a blue ball", steps=100, seed=2, idempotency_key="blue")
            assert drawn.job.id == accepted.job_id
            await all_there(it, kept, drawn, await it.generate("a green cone", seed=3))


async def _nothing_is_written(it: House, prompt: str) -> None:
    with pytest.raises(UnavailableError, match="the catalog's disk cannot be written: it fails, or became read-only"):
        await it.client.generate(prompt, seed=1, steps=10, variation="same")
