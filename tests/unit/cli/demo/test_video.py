"""The page and the figures of a session of clips."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from services.cli.app import app
from services.cli.demo.video import Row, page, summary
from services.cli.display.masks import BACKGROUND_RGB, OBJECT_RGB, animation, painted_pair
from shared.client import Clip
from shared.domain.errors import ConfigurationError
from shared.domain.types import Modality, PlanSource, Source
from shared.runtime.animated_png import decode
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
    assert "background of another" not in text  # nothing was stitched
    assert "In masks" not in text


def test_a_note_that_is_the_reason_is_shown_once() -> None:
    one = row(PlanSource.NOISE, 0)
    why = "k_table: none counts for motion"
    plan = replace(one.clip.plan, reason=f"Generated from noise: {why}.", degraded=("index: away", why))
    text = page([replace(one, clip=replace(one.clip, job=replace(one.clip.job, plan=plan)))])
    assert text.count(why) == text.count("index: away") == 1


def test_a_stitched_clip_shows_both_sources_their_masks_and_its_start() -> None:
    rows = [row(PlanSource.NOISE, 0), row(PlanSource.NOISE, 0), row(PlanSource.STITCHED, 20)]
    rows = [replace(one, clip=replace(one.clip, job=replace(one.clip.job, id=f"job{n}"))) for n, one in enumerate(rows)]
    sources = tuple(Source(f"job{n}", "states/a", mask_key="masks/a") for n in (1, 0))
    job = replace(rows[2].clip.job, plan=replace(rows[2].clip.plan, sources=sources))
    thing, place = np.zeros((2, 4, 4), bool), np.zeros((2, 4, 4), bool)
    thing[:, 0], place[:, 2:] = True, True
    masks = painted_pair([(thing, ~thing), (thing, place)])
    rows[2] = replace(rows[2], clip=replace(rows[2].clip, job=job), preview=b"preview", masks=masks)
    text = page(rows)
    assert summary(rows)["stitched"] == 1
    assert "1 started from the object of one clip and the background of another" in text
    assert "In masks" in text
    first, second = text.index("object of 2"), text.index("background of 1")
    assert first < second < text.index("taken from each") < text.index("first preview")
    assert text.count("its masks") == 2
    assert text.count('src="01.mp4"') == text.count('src="02.mp4"') == 2
    assert base64.b64encode(b"preview").decode() in text
    assert (masks.object[0, 0, 0].tolist(), masks.object[0, 3, 0].tolist()) == ([*OBJECT_RGB], [*BACKGROUND_RGB])
    assert masks.background[0, 1, 0].tolist() == [0, 0, 0]  # in neither mask
    assert masks.taken[0, 1, 0].tolist() == [*OBJECT_RGB]  # replaced by what the object's clip shows there
    assert decode(animation(masks.taken)).tolist() == masks.taken.tolist()


def test_without_a_video_model_no_folder_is_made(tmp_path: Path) -> None:
    error = CliRunner().invoke(app, ["demo-video", "--video", "", "-o", str(tmp_path / "clips")]).exception
    assert isinstance(error, ConfigurationError)
    assert "video: names no model" in str(error)
    assert not list(tmp_path.iterdir())
