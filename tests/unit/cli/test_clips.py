"""The options of a clip: each absurd value gets one line that names it and its rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from services.cli.app import app
from services.cli.clips import ClipOptions
from shared.client import Clip
from shared.domain.errors import AfterimageError, InvalidRequestError
from shared.domain.types import Modality, Timings
from shared.runtime.animated_png import encode
from tests.unit.cli.views import picture


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--frames", "16"), "frames: needs --video"),
        (("--poster", "p.jpg"), "poster: needs --video"),
        (("--continue", "01jd"), "continue: needs --video"),
        (("--scale", "2"), "scale: needs --video"),
        (("--resample", "bogus"), "resample: needs --video"),
        (("--video", "--frames", "16", "--seconds", "2"), "seconds: name frames or seconds, not both"),
        (("--video", "--frames", "0"), "frames: must be a whole number of at least 1"),
        (("--video", "--seconds", "nan"), "seconds: must be a number above 0"),
        (("--video", "--seconds", "inf"), "seconds: must be a number above 0"),
        (("--video", "--fps", "0"), "fps: must be a number from 0.1 to 120"),
        (("--video", "--fps", "60", "-o", "f.gif"), "fps: must be at most 50 in a GIF"),
        (("--video", "--scale", "1000"), "scale: must be a whole number from 1 to 16"),
        (("--video", "--resample", "cubic"), "resample: must be one of lanczos, nearest"),
        (("--video", "-o", "fox.avi"), "out: must end in one of"),
        (("--video", "--poster", "p.gif"), "poster: must end in one of"),
        (("--video", "-o", "p.png", "--poster", "p.png"), "poster: must be another file than --out"),
        (("--video", "--strip", "p.png", "--poster", "p.png"), "strip: must be another file than --poster"),
        (("--video", "-o", "fox", "--poster", "fox/frame-0001.png"), "poster: must be outside the folder of frames"),
        (("--video", "-o", "fox", "--strip", "./fox/s/s.png"), "strip: must be outside the folder of frames, --out"),
        (("--video", "-o", "fox", "--previews", "fox"), "previews: must be another folder than --out"),
        (("--video", "-o", f"{'a' * 300}.mp4"), "out: cannot be written (File name too long)"),
        (("--video", "-o", "a" * 300), "out: cannot be read (File name too long)"),
    ],
)
def test_an_absurd_option_is_refused_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    error = CliRunner().invoke(app, ["generate", "a fox", *arguments]).exception
    assert isinstance(error, InvalidRequestError)
    assert str(error).startswith(said)
    assert "\n" not in str(error)
    assert not list(tmp_path.iterdir())


def made_clip(index: int = 0) -> Clip:
    still = picture()
    request = replace(still.job.request, modality=Modality.VIDEO, frames=2)
    png = encode([Image.new("RGB", (64, 64), colour) for colour in ("red", "blue")])
    job = replace(still.job, id=f"j{index + 1}", request=request)
    return Clip(job, "clips", 50, Timings(), png=png, index=index, fps=8.0)


def test_a_file_that_cannot_be_written_keeps_no_other_from_being_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    options = ClipOptions(True, poster=tmp_path / "file" / "poster.png", strip=tmp_path / "strip.png")
    with pytest.raises(AfterimageError, match=r"^poster: .*fetch the poster again: .* --poster FILE"):
        options.keep(made_clip(), tmp_path / "fox.png", 1, "")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "fox.png", "strip.png"}
    with pytest.raises(AfterimageError, match=r"^out: cannot write .*; poster: cannot write"):
        options.keep(made_clip(), tmp_path / "file" / "fox.png", 1, "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-o", "fox.png", "--poster", "./fox.png"), "poster: must be another file than --out"),
        (("-o", "fox.mp4", "--poster", "p.png", "--strip", "p.png"), "strip: must be another file than --poster"),
        (("-n", "2", "-o", "fox.webp", "--strip", "fox.webp"), "strip: must be another file than --out"),
    ],
)
def test_each_file_of_a_clip_has_a_name_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    error = CliRunner().invoke(app, ["generate", "a fox", "--video", *options]).exception
    assert isinstance(error, InvalidRequestError)
    assert str(error).startswith(said)
