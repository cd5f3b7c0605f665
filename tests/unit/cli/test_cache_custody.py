"""`afterimage cache collect` and `adopt` on a data directory that nothing works in."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest
import typer
from rich.console import Console

from services.cli import cache
from shared.domain.errors import ConfigurationError, DataDirectoryLockedError, NotFoundError, StoreMismatchError
from shared.runtime import audit
from shared.runtime.settings import Settings
from shared.service.backends import open_backends


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    out = io.StringIO()
    monkeypatch.setattr(cache, "wide", lambda: Console(file=out, width=1000))
    return out


async def test_collect_shows_what_a_pass_would_delete_and_deletes_with_yes(
    settings: Settings, shown: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AFTERIMAGE_QUARANTINE_S", "0")
    monkeypatch.setenv("AFTERIMAGE_BLOB_GRACE_S", "0.01")
    monkeypatch.setattr("services.cache_maintainer.background_work.BackgroundWork.every", _never)
    backends = await open_backends(settings)
    for number in range(3):
        await backends.blobs.put(f"states/nobody{number}/1/5", b"x")
    await backends.close()
    await asyncio.sleep(0.1)
    await asyncio.to_thread(cache.collect, False, settings.data_dir)
    assert "3 blobs in the store; no row names 3 of them" in shown.getvalue()
    assert "3 have been in quarantine for 0 days" in shown.getvalue()
    await asyncio.to_thread(cache.collect, True, settings.data_dir)
    assert "deleted 3 blobs" in shown.getvalue()
    assert not any((settings.data_dir / "blobs").glob("states/*"))
    assert _audited(settings) == [("collect, only look", "done"), ("collect", "done")]


def _audited(settings: Settings) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in (settings.data_dir / audit.FILE).read_text().splitlines()]
    return [(line["action"], line["outcome"]) for line in lines]


async def _never(*_: object, **__: object) -> None:
    """A pass of its own would come first."""


async def test_adopt_makes_a_pair_that_was_refused_start(settings: Settings, shown: io.StringIO) -> None:
    await (await open_backends(settings)).close()
    catalog = settings.data_dir / "catalog.sqlite3"
    catalog.rename(settings.data_dir / "lost.sqlite3")
    with pytest.raises(StoreMismatchError):
        await open_backends(settings)
    with pytest.raises(StoreMismatchError):  # what opens the maintainer for one command refuses as well
        await asyncio.to_thread(cache.collect, True, settings.data_dir)
    await asyncio.to_thread(cache.adopt, True, settings.data_dir)
    assert f"the store at {settings.data_dir}/blobs belongs to the catalog at {catalog}" in shown.getvalue()
    assert _audited(settings) == [("cache adopt", "done")]
    backends = await open_backends(settings)
    with pytest.raises(DataDirectoryLockedError):  # not beside a process that works there
        await asyncio.to_thread(cache.adopt, True, settings.data_dir)
    await backends.close()


async def test_adopt_asks_first_and_names_both(
    settings: Settings, shown: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def no(question: str, *, abort: bool) -> None:
        asked.append(question)
        raise typer.Abort

    monkeypatch.setattr(typer, "confirm", no)
    await (await open_backends(settings)).close()
    (settings.data_dir / "catalog.sqlite3").unlink()
    with pytest.raises(typer.Abort):
        await asyncio.to_thread(cache.adopt, False, settings.data_dir)
    assert "do not belong together" in shown.getvalue()
    assert str(settings.data_dir / "blobs") in asked[0]
    with pytest.raises(StoreMismatchError):
        await open_backends(settings)


async def test_adopting_makes_no_data_directory(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="data_dir"):
        await asyncio.to_thread(cache.adopt, True, tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


async def test_collect_of_a_store_that_the_catalog_does_not_know_says_so(settings: Settings) -> None:
    stranger = settings.data_dir / "blobs" / "states" / "nobody"
    stranger.mkdir(parents=True)
    (stranger / "5").write_bytes(b"x")
    with pytest.raises(ConfigurationError, match="knows 0% of 1 sampled blobs"):
        await asyncio.to_thread(cache.collect, True, settings.data_dir)
    assert (stranger / "5").exists()
