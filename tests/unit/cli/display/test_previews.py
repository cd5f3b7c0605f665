"""Previews in the terminal: half blocks, at most as wide as a small window, one frame of a clip at a time."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text

from services.cli.display.previews import TERMINAL, PreviewBars, half_blocks
from shared.client import Progress


def _png(*colours: str) -> bytes:
    first, *others = [Image.new("RGB", (4, 4), colour) for colour in colours]
    out = io.BytesIO()
    first.save(out, "PNG", save_all=True, append_images=others)
    return out.getvalue()


def test_a_character_shows_two_pixels() -> None:
    image = Image.new("RGB", (2, 2), "red")
    image.paste("blue", (0, 1, 2, 2))
    text = half_blocks(image)
    assert text.plain == "▀▀\n"
    assert {str(span.style) for span in text.spans} == {"#ff0000 on #0000ff"}
    wide = half_blocks(Image.new("RGB", (1024, 512), "red")).plain.splitlines()
    assert (len(wide), len(wide[0])) == (8, 32)


def test_the_terminal_shows_the_frames_of_the_last_preview() -> None:
    bars = PreviewBars(TERMINAL, console=Console(quiet=True))
    bars.preview(Progress("j1", 1, 4, _png("red", "blue")), 1)
    assert len(bars._frames) == 2
    shown, *_ = bars.get_renderables()
    assert isinstance(shown, Text)
    bars.preview(Progress("j1", 2, 4, _png("green")), 1)
    assert [str(frame.spans[0].style) for frame in bars._frames] == ["#008000 on #008000"]


def test_a_folder_that_cannot_be_written_stops_previews_not_the_job(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    bars = PreviewBars(tmp_path / "file", console=Console(quiet=True))
    bars.preview(Progress("j1", 1, 4, _png("red")), 1)
    bars.preview(Progress("j1", 2, 4, _png("red")), 1)
    assert bars._folder is None
    two = PreviewBars(tmp_path / "seen", console=Console(quiet=True))
    two.preview(Progress("j2", 3, 4, _png("red"), index=1), 2)
    assert (tmp_path / "seen" / "2-step-0003.png").read_bytes() == _png("red")
