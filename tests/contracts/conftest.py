"""One fixture per port, one parameter per adapter: a new adapter is one more name and one more branch."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from minio import Minio
from sqlalchemy.ext.asyncio import create_async_engine

from shared.blobs import Blobs, open_blobs
from shared.blobs.address import address_of
from shared.blobs.minio import HASH
from shared.bus import Bus, open_bus
from shared.bus.inprocess import InProcessBus
from shared.catalog import Catalog, open_catalog
from shared.ids import new_id
from shared.index import Index, open_index
from shared.index.memory import MemoryIndex
from tests.contracts.servers import url_of


@pytest.fixture(params=["inprocess"])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    opened = await open_bus("inprocess:")
    yield opened
    await opened.close()


@pytest.fixture
def dead_letters(bus: Bus) -> Callable[[], Awaitable[list[tuple[str, str]]]]:
    """(lane, reason) of every dead letter, as the adapter shows them."""

    async def look() -> list[tuple[str, str]]:
        assert isinstance(bus, InProcessBus)
        return [(letter.lane, letter.reason) for letter in bus.dead_letters()]

    return look


@pytest.fixture
def lane() -> str:
    """A lane that no other test uses."""
    return f"test.{new_id()}"


@pytest.fixture(params=["memory", "memory-graph"])
async def index(request: pytest.FixtureRequest) -> AsyncIterator[Index]:
    # memory-graph: the same adapter with the graph from the first dozen vectors on
    opened: Index = MemoryIndex(exact_up_to=12) if request.param == "memory-graph" else await open_index("memory:")
    yield opened
    await opened.close()


@pytest.fixture(params=["filesystem", "seaweedfs", "minio"])
async def blobs_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file:{tmp_path / 'blobs'}" if request.param == "filesystem" else url_of(request.param)


@pytest.fixture
async def blobs(blobs_url: str) -> AsyncIterator[Blobs]:
    """An empty blob store."""
    opened = await open_blobs(blobs_url)
    await opened.delete([blob.key async for blob in opened.list()])
    yield opened
    await opened.close()


@pytest.fixture
def spoil(blobs: Blobs, blobs_url: str, tmp_path: Path) -> Callable[[str], None]:
    """Damages one byte of a stored blob behind the adapter's back."""

    def damage_file(key: str) -> None:
        path = tmp_path / "blobs" / key
        path.write_bytes(_with_one_byte_changed(path.read_bytes()))

    def damage_object(key: str) -> None:
        at = address_of(blobs_url)
        client = Minio(at.endpoint, at.access_key, at.secret_key, secure=at.secure)
        with client.get_object(at.bucket, key) as stored:
            content = _with_one_byte_changed(stored.read())
            sha256 = stored.headers[HASH]
        client.put_object(at.bucket, key, io.BytesIO(content), len(content), metadata={"sha256": sha256})

    return damage_file if blobs_url.startswith("file:") else damage_object


def _with_one_byte_changed(content: bytes) -> bytes:
    changed = bytearray(content)
    changed[len(changed) // 3] ^= 0x40
    return bytes(changed)


async def _statement(url: str, text: str) -> Any:
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT")
    try:
        async with engine.connect() as connection:
            await connection.exec_driver_sql(text)
    finally:
        await engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
async def catalog_url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """An empty catalog of the test's own."""
    if request.param == "sqlite":
        yield f"sqlite+aiosqlite:///{tmp_path / 'catalog.db'}"
        return
    server = sa.make_url(url_of("postgresql")).set(drivername="postgresql+asyncpg")
    name = f"test_{new_id()}"
    await _statement(server.render_as_string(hide_password=False), f'CREATE DATABASE "{name}"')
    yield server.set(database=name).render_as_string(hide_password=False)
    await _statement(server.render_as_string(hide_password=False), f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
async def catalog(catalog_url: str) -> AsyncIterator[Catalog]:
    opened = await open_catalog(catalog_url)
    yield opened
    await opened.close()


@pytest.fixture
async def replica(catalog: Catalog, catalog_url: str) -> AsyncIterator[Catalog]:
    """The same catalog, opened a second time, as another process has it."""
    opened = await open_catalog(catalog_url)
    yield opened
    await opened.close()
