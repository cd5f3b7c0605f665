"""`afterimage cache` on a data directory that nothing works in."""

from __future__ import annotations

import asyncio
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from protos import cache_maintainer_pb2 as pb
from services.cache_maintainer.cache_index import Counts
from services.cache_maintainer.rpc_messages import PAGE
from services.cache_maintainer.service import CacheMaintainerService
from services.cli import cache
from services.cli.quality import quality_table
from services.global_monitor.service import GlobalMonitorService
from shared.catalog import open_catalog
from shared.domain.errors import ConfigurationError, UnavailableError
from shared.domain.types import IndexFilter
from shared.runtime.settings import Settings
from shared.service import running
from shared.service.backends import open_backends
from tests.contracts.conftest import an_empty_weaviate
from tests.contracts.nouns import a_vector, an_entry
from tests.contracts.servers import url_of


async def test_inspect_shows_as_many_entries_as_it_was_asked_for(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends = await open_backends(settings)
    for number in range(PAGE + 20):
        entry = replace(an_entry(steps=()), prompt=f"prompt {number}")
        await backends.catalog.entries.add(entry, {})
    await backends.close()
    shown = io.StringIO()
    monkeypatch.setattr(cache, "wide", lambda: Console(file=shown, width=400))
    await asyncio.to_thread(cache.inspect, "", PAGE + 10, "", settings.data_dir)
    assert len(set(re.findall(r"prompt \d+", shown.getvalue()))) == PAGE + 10
    assert "more: afterimage cache inspect" in shown.getvalue()


async def test_a_target_is_asked_whatever_the_data_directory_holds(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, elsewhere = io.StringIO(), tmp_path / "elsewhere"
    monkeypatch.setattr(cache, "wide", lambda: Console(file=shown, width=400))
    maintainer = CacheMaintainerService()
    async with running([maintainer], settings) as process:
        await process.context.backends.catalog.entries.add(replace(an_entry(), prompt="a fox"), {})
        maintainer.cache.counts = Counts(inserted=9, evicted=4, holes=3)
        await asyncio.to_thread(cache.stats, elsewhere, process.address)
        await asyncio.to_thread(cache.inspect, "", 5, "", elsewhere, process.address)
        assert "1 entry, " in shown.getvalue()
        assert "9 states inserted, 4 evicted, 3 of them" in shown.getvalue()
        assert "a fox" in shown.getvalue()
    with pytest.raises(UnavailableError):
        await asyncio.to_thread(cache.stats, elsewhere, process.address)
    async with running([GlobalMonitorService()], settings.model_copy(update={"data_dir": tmp_path / "other"})) as other:
        with pytest.raises(ConfigurationError, match="another service, or another version of it"):
            await asyncio.to_thread(cache.stats, elsewhere, other.address)
    assert not elsewhere.exists()


async def test_with_a_catalog_on_a_server_its_own_maintainer_is_asked_and_none_is_started(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would lead, and evict down to what this shell's settings allow."""
    monkeypatch.setenv("AFTERIMAGE_CATALOG_URL", "postgresql+asyncpg://user:secret@catalog.internal:5432/afterimage")
    with pytest.raises(ConfigurationError, match="AFTERIMAGE_CACHE_MAINTAINER_ADDRESS=host:port") as said:
        await asyncio.to_thread(cache.inspect, "", 5, "", settings.data_dir)
    assert "internal" not in str(said.value)
    assert not settings.data_dir.exists()


async def test_an_index_inside_a_process_is_not_rebuilt_from_another(settings: Settings) -> None:
    with pytest.raises(ConfigurationError, match="index_url: memory: "):
        await asyncio.to_thread(cache.rebuild_index, settings.data_dir)
    assert not (settings.data_dir / "catalog.sqlite3").exists()


async def test_an_index_on_a_server_is_rebuilt_by_one_command(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AFTERIMAGE_INDEX_URL", url_of("weaviate"))
    index = await an_empty_weaviate(url_of("weaviate"))
    catalog = await open_catalog(settings.catalog_url)
    entry = an_entry()
    await catalog.entries.add(entry, {"whole": a_vector(1).tobytes()})
    await catalog.close()
    shown = io.StringIO()
    monkeypatch.setattr(cache, "wide", lambda: Console(file=shown, width=400))
    await asyncio.to_thread(cache.rebuild_index, settings.data_dir)
    assert "0 entries kept, 1 added, 0 removed" in shown.getvalue()
    (hit,) = await index.search("whole", a_vector(1), IndexFilter(), 5)
    assert hit.entry_id == entry.id
    await index.close()


def test_quality_shows_the_checks_of_each_cell_and_what_stopped() -> None:
    ratios = {name: pb.Ratio(value=0.5, low=0.4, high=0.6) for name in ("score", "contrast", "saturation", "sharpness")}
    cell = pb.CheckedCell(
        model="large", relation="edit", source="latent", steps=50, start_step=15, checks=20, fails=9, ratios=ratios,
        stopped_at=1.0,
    )  # fmt: skip
    table = quality_table([pb.CheckedCell(model="large"), cell])
    everything, stopped = zip(*(list(column.cells) for column in table.columns), strict=True)
    assert everything == ("large", "all", "all", "all", "0", "0", "–", "–", "–", "–", "in force")
    assert stopped[:7] == ("large", "edit", "latent", "15 of 50", "20", "9", "0.50 (0.40 to 0.60)")
    assert str(stopped[-1]).startswith("stopped since ")
