"""The overhead benchmark on a few requests: what it counts, and what it finds that they cannot do without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import overhead
from bench.serving.embedded_floors import FLOORS, WHOLE, Floor, figures
from services.cache_maintainer.pictures import pictures_start
from services.embedder.encoder import encoder_folder, encoder_id
from services.retriever.tables import Tables
from shared.catalog import open_catalog
from shared.runtime import progress as remaining
from shared.runtime.settings import Settings
from tests import tiny


def test_a_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(overhead, "WARM_UP", 1)
    monkeypatch.setattr(remaining, "EVERY_S", 0.0)
    clip = tiny.build(tmp_path / "models") / "clip"
    given = {"count": 3, "pictures-count": 3, "real-count": 0, "floors": 3, "pause-s": 0.01, "encoder": clip}
    given |= {"out": tmp_path}
    overhead.main([part for name, value in given.items() for part in (f"--{name}", str(value))])
    found = json.loads((tmp_path / "overhead.json").read_text())["figures"]
    assert found["noop"]["all"]["requests"] == 3
    assert found["pictures"]["all"]["requests"] == 3
    floors = found["floors"]
    assert floors.keys() == {*(name for name, _ in FLOORS), WHOLE, "sum"}
    assert all(one[kind] > 0 for one in floors.values() for kind in ("warm_ms", "paused_ms"))
    said = capsys.readouterr().out
    assert "noop, requests: 2 of 4 (50.0%), " in said  # one of them warms up
    assert f"| all in order: {WHOLE} |" in said


async def test_with_its_table_pictures_are_embedded_and_searched(settings: Settings) -> None:
    own = settings.model_copy(update={"large": "noop:?step_ms=1.0"})

    encoder = encoder_id(encoder_folder(own.encoder))

    async def are_embedded() -> bool:
        catalog = await open_catalog(own.catalog_url)
        try:
            return await pictures_start(catalog.profiles, own, encoder)
        finally:
            await catalog.close()

    own.data_dir.mkdir()
    assert not await are_embedded()
    await overhead.let_pictures_start(own)
    assert await are_embedded()
    catalog = await open_catalog(own.catalog_url)
    tables = Tables(catalog.profiles, own)
    await tables.open()
    (known,) = tables.served
    assert known.may_refine(encoder, [known.card])
    await catalog.close()


def test_a_request_counts_what_it_does_twice_twice() -> None:
    found = {name: Floor(0.001, 0.002) for name in (*dict(FLOORS), WHOLE)}
    assert figures(found)["sum"] == {"warm_ms": pytest.approx(len(FLOORS)), "paused_ms": pytest.approx(2 * len(FLOORS))}
