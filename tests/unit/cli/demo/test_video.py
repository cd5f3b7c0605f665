"""The page and the figures of a session of clips."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from typer.testing import CliRunner

from services.cli.app import app
from services.cli.demo.video import Row, page, summary
from shared.client import Clip
from shared.domain.errors import ConfigurationError
from shared.domain.types import Modality, PlanSource
from tests.unit.cli.views import picture


def row(source: PlanSource, start: int) -> Row:
    drawn = picture("a <b>fox</b>", source, start)
    request = replace(drawn.job.request, modality=Modality.VIDEO, frames=16)
    return Row(Clip(replace(drawn.job, request=request), "motion", drawn.steps_run, drawn.timings), 1.5)


def test_the_page_plays_each_clip_and_says_where_it_started() -> None:
    rows = [row(PlanSource.NOISE, 0), row(PlanSource.LATENT, 20)]
    assert summary(rows) == {"clips": 2, "steps_total": 100, "steps_run": 80, "stitched": 0, "seconds": 3.0}
    text = page(rows)
    assert text.count("autoplay loop muted playsinline") == 2
    assert 'src="02.mp4" poster="02.jpg"' in text
    assert "64x64, 16 frames" in text
    assert "from step 20 of 50" in text
    assert "<b>fox" not in text
    assert "http" not in text


def test_without_a_video_model_no_folder_is_made(tmp_path: Path) -> None:
    error = CliRunner().invoke(app, ["demo-video", "--video", "", "-o", str(tmp_path / "clips")]).exception
    assert isinstance(error, ConfigurationError)
    assert "video: names no model" in str(error)
    assert not list(tmp_path.iterdir())
