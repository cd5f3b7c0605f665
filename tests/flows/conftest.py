"""Random tiny models, built once, settings that use them, and what several instances of a service share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from services.gpu_worker.models import measuring
from shared.blobs import open_blobs
from shared.bus import open_bus
from shared.catalog import open_catalog
from shared.index import open_index
from shared.runtime.settings import Settings
from shared.service.backends import Backends
from tests import tiny as tiny_models
from tests.contracts.databases import new_database

Make = Callable[..., Settings]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.build(tmp_path_factory.mktemp("models"), channels=(16,))


@pytest.fixture(autouse=True)
def _measured_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a worker has several models, its start measures each: the warm-up and one step."""
    monkeypatch.setattr(measuring, "STEPS", 2)


@pytest.fixture
def make(settings: Settings, tiny: Path) -> Make:
    """Settings on the tiny models, with changes."""

    def made(**changes: Any) -> Settings:
        given = {"large": str(tiny / "large"), "encoder": str(tiny / "clip"), "torch_threads": 1} | changes
        return Settings(**(settings.model_dump(exclude={"catalog_url", "blobs_url"}) | given))

    return made


@pytest.fixture
async def backends(tmp_path: Path) -> AsyncIterator[Backends]:
    """Shared by several instances of a service, as servers are: one PostgreSQL catalog, the rest in this process."""
    async with new_database() as catalog_url:
        opened = Backends(
            await open_bus("inprocess:"),
            await open_index("memory:"),
            await open_blobs(f"file:{tmp_path}/blobs"),
            await open_catalog(catalog_url),
        )
        yield opened
        await opened.close()
