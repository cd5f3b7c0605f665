"""One fixture per port, one parameter per adapter: a new adapter is one more name and one more branch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from shared.blobs import Blobs, open_blobs
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


@pytest.fixture(params=["filesystem"])
async def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Blobs]:
    opened = await open_blobs(f"file:{tmp_path / 'blobs'}")
    yield opened
    await opened.close()


@pytest.fixture
def spoil(blobs: Blobs, tmp_path: Path) -> Callable[[str], None]:
    """Damages one byte of a stored blob behind the adapter's back."""

    def damage(key: str) -> None:
        path = tmp_path / "blobs" / key
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 0x40
        path.write_bytes(content)

    return damage


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
