"""One fixture per port, one parameter per adapter: a new adapter is one more name and one more branch."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from minio import Minio

from shared.blobs import Blobs, open_blobs
from shared.blobs.address import address_of
from shared.blobs.minio import HASH
from shared.bus import Bus, DeadLetter, open_bus
from shared.bus.rabbitmq import RabbitBus
from shared.catalog import Catalog, open_catalog
from shared.domain.ids import new_id
from shared.index import Index, open_index
from shared.index.memory import MemoryIndex
from shared.index.weaviate import WeaviateIndex
from shared.index.weaviate.collection import COLLECTION
from tests.contracts.databases import new_database
from tests.contracts.servers import url_of


@pytest.fixture(params=["inprocess", "rabbitmq"])
def bus_url(request: pytest.FixtureRequest) -> str:
    return "inprocess:" if request.param == "inprocess" else url_of("rabbitmq")


@pytest.fixture(autouse=True)
def queues_are_trusted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has new lanes, and none of these brokers is killed in the seconds that they need to settle."""
    monkeypatch.setattr("shared.bus.rabbitmq.declaring.SETTLE_S", 0.0)


@pytest.fixture
async def bus(bus_url: str) -> AsyncIterator[Bus]:
    opened = await open_bus(bus_url)
    yield opened
    await opened.close()


@pytest.fixture
async def rabbit() -> AsyncIterator[RabbitBus]:
    """For tests that look into the adapter; it waits longer than a broker takes on a busy machine."""
    opened = await RabbitBus(url_of("rabbitmq"), wait_s=10.0).open()
    yield opened
    await opened.close()


@pytest.fixture
def dead_letters(bus: Bus, lane: str) -> Callable[[], Awaitable[list[DeadLetter]]]:
    """The dead letters of this test's lane."""

    async def look() -> list[DeadLetter]:
        return [letter for letter in await bus.dead_letters() if letter.lane == lane]

    return look


@pytest.fixture
def lane() -> str:
    """A lane that no other test uses."""
    return f"test.{new_id()}"


@pytest.fixture(params=["memory", "memory-graph", "weaviate"])
async def index(request: pytest.FixtureRequest) -> AsyncIterator[Index]:
    """An empty index."""
    if request.param == "weaviate":
        opened = await an_empty_weaviate(url_of("weaviate"))
    elif request.param == "memory-graph":  # the same adapter with the graph from the first dozen vectors on
        opened = MemoryIndex(exact_up_to=12)
    else:
        opened = await open_index("memory:")
    yield opened
    await opened.close()


async def an_empty_weaviate(url: str) -> Index:
    opened = await open_index(url)
    assert isinstance(opened, WeaviateIndex)
    await opened._connection.client.collections.delete(COLLECTION)
    return opened


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


@pytest.fixture
def migrated() -> bool:
    """Whether a PostgreSQL catalog has its tables before it is opened."""
    return True


@pytest.fixture(params=["sqlite", "postgresql"])
async def catalog_url(request: pytest.FixtureRequest, tmp_path: Path, migrated: bool) -> AsyncIterator[str]:
    """An empty catalog of the test's own."""
    if request.param == "sqlite":
        yield f"sqlite+aiosqlite:///{tmp_path / 'catalog.db'}"
        return
    async with new_database(migrated=migrated) as url:
        yield url


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
