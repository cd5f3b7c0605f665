"""What the settings say of the servers reaches the clients, and no error quotes a password."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from shared.blobs.filesystem import FilesystemBlobs
from shared.bus import open_bus
from shared.catalog import open_catalog
from shared.domain.errors import ConfigurationError
from shared.domain.types import IndexItem
from shared.index import Hnsw
from shared.index.memory import EXACT_UP_TO, MemoryIndex
from shared.runtime.settings import Settings
from shared.service import backends
from shared.service.backends import open_backends


async def test_keys_and_graph_settings_reach_the_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    async def blobs(url: str, **keys: str) -> FilesystemBlobs:
        asked.update(keys)
        return await FilesystemBlobs.open(str(tmp_path / "blobs"))

    async def index(url: str, hnsw: object = None) -> MemoryIndex:
        asked["hnsw"] = hnsw
        return MemoryIndex()

    monkeypatch.setattr(backends, "open_blobs", blobs)
    monkeypatch.setattr(backends, "open_index", index)
    settings = Settings(
        data_dir=tmp_path,
        blobs_access_key="me",
        blobs_secret_key="hidden",
        weaviate_hnsw_ef=77,
        weaviate_exact_up_to=2000,
    )
    await (await open_backends(settings)).close()
    assert (asked["access_key"], asked["secret_key"]) == ("me", "hidden")
    assert asked["hnsw"] == Hnsw(ef=77, exact_up_to=2000)


async def test_the_graph_of_an_index_in_memory_grows_once_the_services_are_started(tmp_path: Path) -> None:
    opened = await open_backends(Settings(data_dir=tmp_path))
    assert isinstance(opened.index, MemoryIndex)
    rows = np.random.default_rng(1).standard_normal((EXACT_UP_TO + 1, 2)).astype(np.float32)
    await opened.index.add([IndexItem(f"{number:04}", {"whole": row}) for number, row in enumerate(rows)])
    (space,) = opened.index._spaces.values()
    assert len(space._waiting) == len(rows)
    opened.started()
    await opened.index.settled()
    assert not space._waiting
    await opened.close()


@pytest.mark.parametrize(
    "url", ["postgresql+asyncpg//me:hunter2@host/db", "postgresql+asyncpg://me:hunter2@host:port/db"]
)
async def test_a_wrong_catalog_url_is_not_quoted(url: str) -> None:
    with pytest.raises(ConfigurationError, match="catalog_url") as error:
        await open_catalog(url)
    assert "hunter2" not in str(error.value)


async def test_a_wrong_bus_url_is_not_quoted() -> None:
    with pytest.raises(ConfigurationError, match="bus_url") as error:
        await open_bus("amqp://me:hunter2@host:port/vhost")
    assert "hunter2" not in str(error.value)


async def test_a_missing_client_of_the_broker_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shared.bus.rabbitmq", None)
    with pytest.raises(ConfigurationError, match=r"bus_url: amqp: .*install afterimage\[cluster\]"):
        await open_bus("amqp://there")
