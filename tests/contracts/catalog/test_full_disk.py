"""A full disk is an error that names itself, and nothing that was stored is lost."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from shared.blobs import open_blobs
from shared.catalog import open_catalog
from shared.domain.errors import BlobMissingError, OverloadedError, StorageFullError, UnavailableError
from tests.contracts.nouns import a_job, a_result
from tests.disks import BreakableDisk, Disk, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A file system of 1 MB; needs the right to mount one (the tests below without it need no rights)."""
    with small_disk(tmp_path / "small", "1m") as made:
        yield made


@contextmanager
def largest_file(bytes_: int) -> Iterator[None]:
    """No file of this process grows beyond `bytes_`: a full disk without rights to mount one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_blobs_on_a_full_disk(disk: Disk) -> None:
    blobs = await open_blobs(f"file:{disk.folder}")
    kept = await blobs.put("pictures/kept", b"k" * 300_000)
    with pytest.raises(StorageFullError, match="pictures/large") as full:
        await blobs.put("pictures/large", b"x" * 2_000_000)
    assert full.value.code == "RESOURCE_EXHAUSTED"
    assert full.value.retry_after_s
    with pytest.raises(BlobMissingError):
        await blobs.get("pictures/large")
    assert await blobs.get("pictures/kept", kept) == b"k" * 300_000
    assert {blob.key async for blob in blobs.list()} == {"pictures/kept"}
    await blobs.put("pictures/fits", b"f" * 500_000)  # the half-written one left its room
    await blobs.close()


async def test_a_blob_that_does_not_fit_leaves_the_old_one(tmp_path: Path) -> None:
    blobs = await open_blobs(f"file:{tmp_path}")
    kept = await blobs.put("a", b"k" * 1000)
    with largest_file(50_000), pytest.raises(StorageFullError):
        await blobs.put("a", b"x" * 100_000)
    assert await blobs.get("a", kept) == b"k" * 1000
    assert list((tmp_path / ".tmp").iterdir()) == []
    await blobs.close()


async def test_a_catalog_on_a_full_disk(disk: Disk) -> None:
    catalog = await open_catalog(f"sqlite+aiosqlite:///{disk.folder / 'catalog.db'}")
    accepted: list[str] = []

    async def accept_until_full() -> None:
        for n in range(2000):
            job, _ = await catalog.jobs.accept(a_job("long " * 400, id=f"job{n:04}"), key_lifetime_s=60.0)
            accepted.append(job.id)

    with pytest.raises(StorageFullError, match="full"):
        await accept_until_full()
    assert accepted
    rows, after = await catalog.jobs.list(limit=1000)
    assert [job.id for job in rows] == accepted[::-1]
    assert after == ""
    await catalog.close()
    # with room again, everything accepted is there and goes on
    disk.grow("16m")
    catalog = await open_catalog(f"sqlite+aiosqlite:///{disk.folder / 'catalog.db'}")
    assert await catalog.jobs.queued() == len(accepted)
    await catalog.jobs.claim(accepted[0], "w1", 60.0)
    assert await catalog.jobs.finish(accepted[0], 1, a_result(accepted[0]))
    await catalog.close()


async def test_a_catalog_that_may_not_grow(tmp_path: Path) -> None:
    catalog = await open_catalog(f"sqlite+aiosqlite:///{tmp_path / 'catalog.db'}")
    first, _ = await catalog.jobs.accept(a_job(), key_lifetime_s=60.0)

    def limit(connection: sa.Connection) -> None:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    await catalog._database.write(limit)
    with pytest.raises(OverloadedError, match="full"):
        await catalog.jobs.accept(a_job("long " * 4000), key_lifetime_s=60.0)
    assert [job.id for job in (await catalog.jobs.list(limit=9))[0]] == [first.id]
    await catalog.jobs.claim(first.id, "w1", 60.0)  # what needs no room still works
    await catalog.close()


async def test_a_catalog_on_a_disk_that_becomes_read_only(tmp_path: Path) -> None:
    disk = BreakableDisk(tmp_path / "disk")
    url = f"sqlite+aiosqlite:///{disk.folder / 'catalog.db'}"
    with disk.mounted():
        catalog = await open_catalog(url)
        first, _ = await catalog.jobs.accept(a_job(), key_lifetime_s=60.0)
        disk.fail()
        with pytest.raises(UnavailableError, match="the catalog's disk cannot be written") as broken:
            await catalog.jobs.accept(a_job(), key_lifetime_s=60.0)
        assert broken.value.retry_after_s
        assert (await catalog.jobs.get(first.id)).id == first.id
        await catalog.close()
    disk.mend()
    with disk.mounted():
        catalog = await open_catalog(url)
        assert [job.id for job in (await catalog.jobs.list(limit=9))[0]] == [first.id]
        await catalog.close()
