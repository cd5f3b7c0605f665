"""Previews of a running job: files in a folder, or the last one in the terminal."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.color import Color
from rich.console import Console, RenderableType
from rich.progress import ProgressColumn
from rich.style import Style
from rich.text import Text

from services.cli.display.words import ProgressBars
from shared.client import Progress
from shared.client.clip_file import check_frames_folder
from shared.domain.errors import InvalidRequestError

if TYPE_CHECKING:
    from PIL import Image

TERMINAL = Path("-")
"""Value of --previews for previews in the terminal."""
CELLS = 32
"""Columns of a preview in the terminal, at most."""
PLAYED_FPS = 8.0
"""Frames per second of a clip's preview in the terminal."""


class PreviewBars(ProgressBars):
    """Progress bars that write previews to `folder`, or show the last one above the bars where `folder` is `-`."""

    def __init__(self, folder: Path | None, *columns: str | ProgressColumn, console: Console) -> None:
        self._folder, self._frames = folder, list[Text]()
        super().__init__(*columns, console=console)

    def preview(self, step: Progress, n: int) -> None:
        """Show or write the preview of one of `n` images; a failed write stops further writes, not the job."""
        if self._folder == TERMINAL:
            from PIL import Image, ImageSequence

            with Image.open(io.BytesIO(step.preview)) as image:
                self._frames = [half_blocks(frame) for frame in ImageSequence.Iterator(image)]
        elif self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                number = "" if n == 1 else f"{step.index + 1}-"
                (self._folder / f"{number}step-{step.step:04}.png").write_bytes(step.preview)
            except OSError as error:
                typer.echo(f"previews: cannot be written to {self._folder} ({error.strerror})", err=True)
                self._folder = None

    def get_renderables(self) -> Iterable[RenderableType]:
        if self._frames:
            yield self._frames[int(time.monotonic() * PLAYED_FPS) % len(self._frames)]
        yield from super().get_renderables()


def check_previews(folder: Path | None, out: Path | None) -> None:
    """Raise InvalidRequestError if previews cannot be written to this folder. out: the file or folder of the result."""
    if folder is None or folder == TERMINAL:
        return
    check_frames_folder(folder, "previews")
    if folder == out:
        raise InvalidRequestError("previews", "must be another folder than --out", folder)


def half_blocks(image: Image.Image) -> Text:
    """Return the image as text: each character shows two pixels, one above the other."""
    small = image.convert("RGB")
    small.thumbnail((CELLS, CELLS))
    pixels, text = small.load(), Text()
    assert pixels is not None
    for y in range(0, small.height - 1, 2):
        for x in range(small.width):
            above, below = (Color.from_rgb(*pixels[x, row]) for row in (y, y + 1))  # type: ignore[misc]
            text.append("▀", Style(color=above, bgcolor=below))
        text.append("\n")
    return text
