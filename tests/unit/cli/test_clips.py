"""The options of a clip: each absurd value gets one line that names it and its rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.app import app
from shared.domain.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--frames", "16"), "frames: needs --video"),
        (("--poster", "p.jpg"), "poster: needs --video"),
        (("--scale", "2"), "scale: needs --video"),
        (("--video", "--frames", "16", "--seconds", "2"), "seconds: must be left out where frames is given"),
        (("--video", "--frames", "0"), "frames: must be a whole number of at least 1"),
        (("--video", "--seconds", "nan"), "seconds: must be a number above 0, and at most 3600"),
        (("--video", "--seconds", "inf"), "seconds: must be a number above 0, and at most 3600"),
        (("--video", "--fps", "0"), "fps: must be a number from 0.1 to 120"),
        (("--video", "--fps", "60", "-o", "f.gif"), "fps: must be at most 50 in a GIF"),
        (("--video", "--scale", "1000"), "scale: must be a whole number from 1 to 16"),
        (("--video", "--resample", "cubic"), "resample: must be one of lanczos, nearest"),
        (("--video", "-o", "fox.avi"), "out: must end in one of"),
        (("--video", "--poster", "p.gif"), "poster: must end in one of"),
        (("--video", "-o", "p.png", "--poster", "p.png"), "poster: must be another file than --out"),
        (("--video", "--strip", "p.png", "--poster", "p.png"), "strip: must be another file than --poster"),
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
