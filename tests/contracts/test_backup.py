"""Backup and restore of each pair of catalog and blob store, while somebody writes to both."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.cli.backup import back_up, restored
from shared.blobs import open_blobs
from shared.blobs.address import address_of
from shared.domain.errors import BlobMissingError, ConfigurationError, DataDirectoryLockedError, InvalidRequestError
from shared.domain.types import Job
from shared.runtime.datadir import lock_data_dir
from shared.runtime.settings import Settings
from shared.service.backends import Backends, open_backends
from shared.service.pairing import compare, places_of
from tests.contracts.databases import new_database
from tests.contracts.servers import url_of
from tests.unit.cached import finished_job, request, unit


@dataclass
class Place:
    """Settings of one deployment's catalog and blob store, which are new."""

    settings: Settings

    async def open(self) -> Backends:
        backends = await open_backends(self.settings, frozenset({"catalog", "blobs"}))
        assert (await compare(backends.catalog, backends.blobs, places_of(self.settings))).state == "paired"
        return backends

    async def finished(self, **more: Any) -> Job:
        backends = await self.open()
        try:
            return await finished_job(backends, request(**more), unit(1), steps=(5,))
        finally:
            await backends.close()


@pytest.fixture(params=["embedded", "servers"])
async def places(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Place, Place]]:
    """Two deployments."""
    if request.param == "embedded":
        yield Place(Settings(data_dir=tmp_path / "one")), Place(Settings(data_dir=tmp_path / "two"))
        return

    async def over(catalog_url: str, name: str) -> Place:
        bucket = address_of(url := url_of("seaweedfs")).bucket
        blobs_url = url.replace(f"/{bucket}?", f"/{name}?")  # each further bucket takes volumes of the server
        blobs = await open_blobs(blobs_url)
        await blobs.delete([blob.key async for blob in blobs.list()])
        await blobs.close()
        return Place(Settings(data_dir=tmp_path / name, catalog_url=catalog_url, blobs_url=blobs_url))

    async with new_database() as one, new_database(migrated=False) as two:
        yield await over(one, "backup-one"), await over(two, "backup-two")


async def test_what_is_restored_is_what_was_there(places: tuple[Place, Place], tmp_path: Path) -> None:
    one, two = places
    jobs = [await one.finished(prompt=f"a fox {number}") for number in range(3)]
    done = await back_up(one.settings, tmp_path / "backup")
    assert done.blobs == {"pictures": 3, "states": 3, "identity": 1}
    assert (await restored(two.settings, tmp_path / "backup")).blobs == done.blobs
    backends = await two.open()  # paired, without `cache adopt`
    for job in jobs:
        assert await backends.catalog.jobs.get(job.id) == job
        assert job.result is not None
        assert await backends.blobs.get(job.result.picture_key, job.result.picture_sha256)
    assert await backends.catalog.jobs.to_cache() == [job.id for job in jobs]
    await backends.close()
    files = [path for path in (tmp_path / "backup").rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


async def test_a_backup_while_jobs_end_lacks_no_image_of_a_job_that_it_has(
    places: tuple[Place, Place], tmp_path: Path
) -> None:
    one, two = places
    await one.finished()
    backends, made = await one.open(), 0

    async def work() -> None:
        nonlocal made
        while True:
            await finished_job(backends, request(prompt=f"a fox {made}"), unit(1), steps=(5,))
            made += 1

    working = asyncio.create_task(work())
    while made < 3:
        await asyncio.sleep(0.01)
    await back_up(one.settings, tmp_path / "backup")
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    await backends.close()
    await restored(two.settings, tmp_path / "backup")
    backends = await two.open()
    jobs, _ = await backends.catalog.jobs.list(limit=1000)
    assert len(jobs) > 3
    for job in jobs:
        if job.result is not None:
            await backends.blobs.get(job.result.picture_key, job.result.picture_sha256)
    await backends.close()


async def test_a_second_backup_copies_what_is_new_and_drops_what_is_gone(
    places: tuple[Place, Place], tmp_path: Path
) -> None:
    one, _ = places
    first, second = await one.finished(), await one.finished()
    await back_up(one.settings, tmp_path / "backup")
    backends = await one.open()
    assert first.result is not None
    assert second.result is not None
    await backends.catalog.erasing.erase([first.id])
    await backends.blobs.delete([first.result.picture_key, first.result.captured[0].key])
    await backends.close()
    await one.finished()
    done = await back_up(one.settings, tmp_path / "backup")
    assert (done.blobs, done.same, done.gone) == ({"pictures": 1, "states": 1}, 3, 2)
    kept = {path.name for path in (tmp_path / "backup" / "blobs").rglob("*") if path.is_file()}
    assert not [path for path in (tmp_path / "backup").rglob("*") if first.id in str(path)]
    assert len(kept) > 0
    done = await back_up(one.settings, tmp_path / "backup", states=False)
    assert done.gone == 2
    assert not (tmp_path / "backup" / "blobs" / "states").exists()


async def test_a_restore_replaces_nothing_and_mixes_nothing(places: tuple[Place, Place], tmp_path: Path) -> None:
    one, two = places
    kept = await one.finished()
    await back_up(one.settings, tmp_path / "backup")
    with pytest.raises(ConfigurationError, match="has a catalog"):
        await restored(one.settings, tmp_path / "backup")
    other = await two.finished()
    with pytest.raises(ConfigurationError, match="belongs to catalog"):
        await back_up(two.settings, tmp_path / "backup")
    new = Settings(data_dir=tmp_path / "three", blobs_url=two.settings.blobs_url)
    if two.settings.catalog_url.startswith("sqlite"):
        with pytest.raises(ConfigurationError, match="belongs to catalog"):
            await restored(new, tmp_path / "backup")
    backends = await two.open()
    assert other.result is not None
    assert kept.result is not None
    await backends.blobs.get(other.result.picture_key)
    with pytest.raises(BlobMissingError):
        await backends.blobs.get(kept.result.picture_key)
    await backends.close()
    with pytest.raises(InvalidRequestError, match="must hold catalog"):
        await restored(new, tmp_path)


async def test_a_damaged_blob_is_named_and_its_good_copy_stays(tmp_path: Path) -> None:
    one = Place(Settings(data_dir=tmp_path / "one"))
    job, late = await one.finished(), await one.finished()
    assert job.result is not None
    assert late.result is not None
    await back_up(one.settings, tmp_path / "backup")
    for result in (job.result, late.result):
        path = tmp_path / "one" / "blobs" / result.picture_key
        path.write_bytes(path.read_bytes()[:-50])
    done = await back_up(one.settings, tmp_path / "backup")
    assert sorted(done.corrupt) == sorted((job.result.picture_key, late.result.picture_key))
    assert done.gone == 0
    two = Place(Settings(data_dir=tmp_path / "two"))
    assert not (await restored(two.settings, tmp_path / "backup")).corrupt


async def test_a_backup_beside_another_into_its_folder_is_refused(tmp_path: Path) -> None:
    one = Place(Settings(data_dir=tmp_path / "one"))
    await one.finished()
    lock = lock_data_dir(tmp_path / "backup")
    with pytest.raises(DataDirectoryLockedError, match=r"^folder: .* is in use by process .* choose another folder$"):
        await back_up(one.settings, tmp_path / "backup")
    assert [path.name for path in (tmp_path / "backup").iterdir()] == ["lock"]
    lock.release()
    await back_up(one.settings, tmp_path / "backup")


async def test_a_backup_after_an_erasure_holds_no_erased_prompt(tmp_path: Path) -> None:
    one = Place(Settings(data_dir=tmp_path / "one"))
    catalog = tmp_path / "one" / "catalog.sqlite3"
    job = await one.finished(prompt="a red axolotl " * 1000)
    with contextlib.closing(sqlite3.connect(catalog)) as connection, connection:
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("DELETE FROM jobs WHERE id = ?", (job.id,))
    assert b"axolotl" in catalog.read_bytes()
    await back_up(one.settings, tmp_path / "backup")
    assert b"axolotl" not in (tmp_path / "backup" / "catalog.sqlite3").read_bytes()


@pytest.mark.parametrize("folder", [".", "data", "data/kept", "link", "apart", "store/blobs"])
def test_a_backup_into_the_data_is_refused_and_changes_nothing(folder: str, tmp_path: Path) -> None:
    catalog_url = f"sqlite+aiosqlite:///{tmp_path}/apart/catalog.sqlite3"
    (tmp_path / "apart").mkdir()
    one = Place(Settings(data_dir=tmp_path / "data", blobs_url=f"file:{tmp_path}/store", catalog_url=catalog_url))
    asyncio.run(one.finished())
    (tmp_path / "link").symlink_to(tmp_path / "data")
    before = {path: path.stat().st_mtime for path in tmp_path.rglob("*")}
    with pytest.raises(InvalidRequestError, match="must lie outside of the data"):
        asyncio.run(back_up(one.settings, tmp_path / folder))
    assert {path: path.stat().st_mtime for path in tmp_path.rglob("*")} == before


async def test_a_backup_keeps_its_copy_of_what_the_store_lost(places: tuple[Place, Place], tmp_path: Path) -> None:
    one, two = places
    job = await one.finished()
    assert job.result is not None
    await back_up(one.settings, tmp_path / "backup")
    backends = await one.open()
    await backends.blobs.delete([job.result.picture_key])
    await backends.close()
    done = await back_up(one.settings, tmp_path / "backup")
    assert (done.missing, done.gone) == ([job.result.picture_key], 0)
    await restored(two.settings, tmp_path / "backup")
    backends = await two.open()
    await backends.blobs.get(job.result.picture_key, job.result.picture_sha256)
    await backends.close()
