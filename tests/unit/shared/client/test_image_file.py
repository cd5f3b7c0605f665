"""Pictures as files: their format, what stands beside the pixels, and what cannot be written."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shared.client import Picture
from shared.client.image_file import check_writable
from shared.client.named_job import job_named_in, keeps_pixels, same_pixels
from shared.domain.errors import InvalidRequestError
from shared.domain.types import ModelPlan
from tests.unit.cli.views import picture, png

PROMPT = "ein Füchslein im Schnee, 雪の中の狐 🦊"
FACTS = {"prompt": PROMPT, "seed": "7", "model": "large", "steps": "50", "job": "j1", "Software": "Afterimage"}


@pytest.fixture
def drawn() -> Picture:
    """64×64 pixels that are all different."""
    out, image = io.BytesIO(), Image.new("RGB", (64, 64))
    image.putdata([(x * 4, y * 4, (x + y) * 2) for y in range(64) for x in range(64)])
    image.save(out, "PNG")
    return replace(picture(PROMPT), png=out.getvalue())


def test_a_png_has_the_very_pixels_and_says_what_it_was_drawn_from(drawn: Picture, tmp_path: Path) -> None:
    drawn.save(tmp_path / "fox.png")
    with Image.open(tmp_path / "fox.png") as kept, Image.open(io.BytesIO(drawn.png)) as first:
        assert kept.format == "PNG"
        assert kept.tobytes() == first.tobytes()
        assert kept.info == FACTS
    drawn.save(str(tmp_path / "fox"))
    assert (tmp_path / "fox").read_bytes() == (tmp_path / "fox.png").read_bytes()


def test_the_steps_are_those_of_the_model_that_ran(drawn: Picture, tmp_path: Path) -> None:
    plan = replace(drawn.job.plan, model="turbo", may_run=(ModelPlan("turbo", 3, steps=10), ModelPlan("large", 15)))
    replace(drawn, job=replace(drawn.job, plan=plan), model="turbo").save(tmp_path / "fox.png")
    with Image.open(tmp_path / "fox.png") as kept:
        assert (kept.info["model"], kept.info["steps"]) == ("turbo", "10")


@pytest.mark.parametrize(("name", "format_name"), [("f.jpg", "JPEG"), ("f.JPEG", "JPEG"), ("f.webp", "WEBP")])
def test_another_ending_is_another_format(drawn: Picture, tmp_path: Path, name: str, format_name: str) -> None:
    drawn.save(tmp_path / name)
    with Image.open(tmp_path / name) as kept, Image.open(io.BytesIO(drawn.png)) as first:
        assert kept.format == format_name
        worst = int(np.abs(np.asarray(kept.convert("RGB"), np.int16) - np.asarray(first, np.int16)).max())
        assert 0 < worst < 32  # lossy, and the same picture
        comment = kept.getexif().get_ifd(0x8769)[0x9286]
    assert comment[:8] == b"ASCII\0\0\0"
    assert json.loads(comment[8:]) == FACTS


def test_long_prompts_fit_an_exif_block(drawn: Picture, tmp_path: Path) -> None:
    request = replace(drawn.job.request, prompt="🦊" * 5000, negative_prompt="雪" * 5000)
    replace(drawn, job=replace(drawn.job, request=request)).save(tmp_path / "f.jpg")
    with Image.open(tmp_path / "f.jpg") as kept:
        facts = json.loads(kept.getexif().get_ifd(0x8769)[0x9286][8:])
    assert facts["prompt"] == "🦊" * 2000
    assert facts["negative_prompt"] == "雪" * 2000


def test_what_cannot_be_written_is_refused_and_nothing_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    refused = {
        tmp_path / "f.gif": "must end in one of .png, .jpg, .jpeg, .webp",
        tmp_path: "must be a file, not a folder",
        tmp_path / "file" / "fox.png": "cannot be written (Not a directory)",
        Path("/proc/fox.png"): "cannot be written (No such file or directory)",
    }
    for path, rule in refused.items():
        with pytest.raises(InvalidRequestError) as caught:
            check_writable(path)
        assert str(caught.value) == f"out: {rule} (got {str(path)!r})"
    for fine in (tmp_path / "file", tmp_path / "new" / "deep" / "fox.webp", tmp_path / "fox.png", Path("/dev/stdout")):
        check_writable(fine)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
    assert (tmp_path / "file").read_text() == "kept"


def test_a_png_names_its_job_until_its_pixels_change(drawn: Picture, tmp_path: Path) -> None:
    for name in ("fox.png", "fox.jpg", "fox.webp", "fox"):
        drawn.save(tmp_path / name)
        assert job_named_in(tmp_path / name) == drawn.job.id
        assert keeps_pixels(tmp_path / name) == (name in ("fox.png", "fox"))
    Image.new("RGB", (8, 8)).save(tmp_path / "other.jpg", comment=b"[1]")
    assert same_pixels(tmp_path / "fox.png", drawn.png)
    assert not same_pixels(tmp_path / "fox.png", png("blue"))
    (tmp_path / "bare.png").write_bytes(drawn.png)
    (tmp_path / "text.png").write_text("no image")
    for wrong, said in (("other.jpg", "wrote"), ("bare.png", "wrote"), ("text.png", "read"), ("gone.png", "read")):
        with pytest.raises(InvalidRequestError, match=f"^from: .*{said}"):
            job_named_in(tmp_path / wrong)
