"""`afterimage backup` and `afterimage restore` on a data directory that nothing serves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.app import app
from services.cli.backup import back_up, restored
from shared.blobs import open_blobs
from shared.domain.errors import ConfigurationError, NotFoundError
from shared.runtime.audit import FILE
from shared.runtime.settings import Settings
from shared.service.backends import open_backends
from tests.unit.cached import finished_job, request, unit

afterimage = CliRunner()


async def _job(settings: Settings) -> None:
    backends = await open_backends(settings)
    try:
        await finished_job(backends, request("a red axolotl"), unit(1))
    finally:
        await backends.close()


def test_a_backup_and_a_restore_say_what_they_copied(settings: Settings, tmp_path: Path) -> None:
    asyncio.run(_job(settings))
    kept, new = str(tmp_path / "kept"), str(tmp_path / "new")
    done = afterimage.invoke(app, ["backup", kept, "--data-dir", str(settings.data_dir)])
    assert "the catalog and 7 blobs (1 in identity, 1 in pictures, 5 in states)" in " ".join(done.stdout.split())
    done = afterimage.invoke(app, ["backup", kept, "--no-states", "--data-dir", str(settings.data_dir)])
    assert "2 were there already, 5 left the backup" in done.stdout
    done = afterimage.invoke(app, ["restore", kept, "--data-dir", new])
    assert "restored from" in done.stdout
    again = afterimage.invoke(app, ["restore", kept, "--data-dir", new])
    assert isinstance(again.exception, ConfigurationError)
    lines = [json.loads(line) for line in (tmp_path / "new" / FILE).read_text().splitlines()]
    said = [(one["action"], one["outcome"]) for one in lines]
    assert said == [("restore", "done"), ("restore", again.exception.code)]


def test_a_restore_into_another_catalogs_bucket_shows_no_key(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(_job(settings))
    asyncio.run(back_up(settings, tmp_path / "kept"))
    asyncio.run(_job(Settings(data_dir=tmp_path / "other")))
    full = f"file:{tmp_path / 'other' / 'blobs'}"
    monkeypatch.setattr("shared.service.backends.blobs_of", lambda _: open_blobs(full))
    new = Settings(data_dir=tmp_path / "new", blobs_url="minio://me:secret@store:9000/full")
    with pytest.raises(ConfigurationError, match=r"^bucket full at store:9000 belongs to catalog"):
        asyncio.run(restored(new, tmp_path / "kept"))


def test_a_backup_of_nothing_makes_no_data_directory(settings: Settings, tmp_path: Path) -> None:
    done = afterimage.invoke(app, ["backup", str(tmp_path / "kept"), "--data-dir", str(settings.data_dir)])
    assert isinstance(done.exception, NotFoundError)
    assert not settings.data_dir.exists()
    assert not (tmp_path / "kept").exists()
