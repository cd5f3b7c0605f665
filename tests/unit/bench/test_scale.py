"""The scale benchmark: its filled entries equal served ones, its growth, its goals, and one small run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import scale
from bench.measuring.growth import fitted
from bench.serving.filled_cache import around, differences, fill, serve_one, widened_encoder
from services.embedder.encoder import Encoder
from shared.blobs import open_blobs
from shared.catalog import open_catalog
from shared.runtime.settings import Settings
from tests import tiny

TEXTS = ["a red fox in the snow", "a blue cube", "a red fox in the rain"]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build_clip(tmp_path_factory.mktemp("models")) / "clip"


def rows_of(folder: Path) -> Any:
    return np.stack([np.frombuffer(one.vector, "<f4") for one in Encoder(folder).texts(TEXTS)])


def test_a_wider_encoder_gives_the_same_cosines(clip: Path, tmp_path: Path) -> None:
    narrow, wide = rows_of(clip), rows_of(widened_encoder(str(clip), 100, tmp_path / "wide"))
    assert wide.shape == (3, 100)
    assert np.allclose(wide @ wide.T, narrow @ narrow.T, atol=1e-5)
    assert widened_encoder(str(clip), 32, tmp_path / "same") == clip
    with pytest.raises(ValueError, match="at least 32"):
        widened_encoder(str(clip), 16, tmp_path / "narrower")


def test_entries_lie_around_the_prompts_of_the_trace() -> None:
    centres = np.eye(4, 256, dtype=np.float32)
    rows, of = around(centres, 200, seed=1)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1)
    assert np.allclose((rows * centres[of]).sum(axis=1), 0.9, atol=0.05)


async def test_a_filled_entry_equals_a_served_one(settings: Settings, clip: Path) -> None:
    own = settings.model_copy(update={"large": "noop:?step_ms=0", "encoder": str(clip), "state_codec": "int4"})
    served_id = await serve_one(own, TEXTS[0])
    catalog, blobs = await open_catalog(own.catalog_url), await open_blobs(own.blobs_url)
    served = await catalog.jobs.get(served_id)
    rows, _ = around(np.frombuffer(served.vector, "<f4")[None], 3, seed=1)
    ids = await fill(catalog, blobs, served, rows, TEXTS)
    assert [await differences(catalog, blobs, served, one) for one in ids] == [[], [], []]
    assert (await catalog.entries.totals()).states == 4 * 9
    # what it would say of an entry that serving would not write
    assert served.result is not None
    odd = replace(served, result=replace(served.result, captured=served.result.captured[:4]))
    (short,) = await fill(catalog, blobs, odd, rows[:1], TEXTS)
    (said,) = await differences(catalog, blobs, served, short)
    assert said.startswith("states: ")
    await blobs.close()
    await catalog.close()


def test_growth_is_the_form_that_fits() -> None:
    line = fitted([(1_000, 12.0), (10_000, 30.0), (100_000, 210.0)])
    assert line.form == "line"
    assert line.at(1_000_000) == pytest.approx(2010)
    assert str(line) == "10 + 2 per 1,000"
    logarithm = fitted([(1_000, 4.0), (10_000, 5.0), (100_000, 6.0)])
    assert logarithm.form == "logarithm"
    assert logarithm.at(1_000_000) == pytest.approx(7)
    assert fitted([(1_000, 0.0), (10_000, 0.0)]).at(10**6) == 0


def test_a_million_is_stated_from_three_counts_where_something_grows() -> None:
    found = [
        {"entries": entries, "start_s": 5 + entries / 1e4, "plan": {"p50_ms": 9 - entries / 1e5}}
        for entries in (1_000, 10_000, 100_000)
    ]
    assert scale.growths(found[:2]) == {}
    assert scale.growths(found).keys() == {"start_s"}
    assert "| start: process to ready, s | 5.1 | 6 | 15 | 105 | 5 + 0.1 per 1,000 |" in scale.report(
        found, scale.growths(found)
    )


def test_goals_are_judged_at_their_count_alone() -> None:
    small = {"entries": 1_000, "start_s": 5.0, "plan": {"p50_ms": 1.0}, "rss_most_mib": 600}
    assert scale.judged([small]) == []
    assert "add --count 100000" in scale.report([small], scale.growths([small]))
    large = {"entries": 100_000, "start_s": 15.1, "plan": {"p50_ms": 3.0}, "rss_most_mib": 1500}
    assert [met for *_, met in scale.judged([small, large])] == [False, True, True]
    said = scale.report([small, large], scale.growths([small, large]))
    assert "| start: process to ready, s | 15 | 15.1 | missed |" in said
    assert "| most resident memory of the run, MiB | 600 | 1,500 |" in said


def test_a_small_run(tmp_path: Path, clip: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"count": 40, "dim": 64, "encoder": clip, "clusters": 10, "queries": 10, "requests": 2, "inserted": 5}
    options = [part for name, value in given.items() for part in (f"--{name}", str(value))]
    scale.main([*options, "--without-weaviate", "--out", str(tmp_path)])
    (found,) = json.loads((tmp_path / "scale.json").read_text())["figures"]["counts"]
    assert found["entries"] == 40
    assert found["disk"]["files"] >= 40 * 6
    assert found["plan"]["hits"] == found["plan"]["count"] == 10
    assert found["search"]["recall_at_1"] == 1.0
    assert found["insert"]["entries"] == 5
    assert found["collector"]["blobs"] >= 40 * 6
    assert all(scale.figure(found, name) is not None for name in scale.FIGURES if not name.startswith("weaviate"))
    assert "plan, p50 ms" in capsys.readouterr().out
