"""The options of clips, for `generate --video` and `jobs show`: their rules, and the files of a clip."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from services.cli.display.words import keep_picture, raise_all
from shared.client import Picture
from shared.client.clip_file import FOLDER, Playback, check_clip_writable, clip_format_of
from shared.client.image_file import check_writable
from shared.client.views import Clip
from shared.domain.clip_length import check_length
from shared.domain.errors import AfterimageError, InvalidRequestError

Fps = Annotated[
    float | None,
    typer.Option(
        help="Frames per second in the file; changes no frame. Default: the model's. A GIF shows each frame for whole "
        "hundredths of a second: at 12, for 0.08 or 0.09 s."
    ),
]
Scale = Annotated[int, typer.Option(help="Pixels of the file per generated pixel of a clip, 1 to 16.")]
Resample = Annotated[str, typer.Option(help="Upscaling by --scale: lanczos (smooth) or nearest.")]
Poster = Annotated[Path | None, typer.Option(help="Image file for the clip's first frame.")]
Strip = Annotated[Path | None, typer.Option(help="Image file for at most eight frames beside each other.")]


@dataclass(frozen=True)
class ClipOptions:
    """Length and playback of a clip; all None or empty for an image."""

    video: bool = False
    frames: int | None = None
    seconds: float | None = None
    fps: float | None = None
    scale: int = 1
    resample: str = "lanczos"
    poster: Path | None = None
    strip: Path | None = None
    image_rule: str = "needs --video"
    """Rule that an option of clips breaks for an image."""

    def __post_init__(self) -> None:
        if not self.video:
            for name in ("frames", "seconds", "fps", "poster", "strip"):
                if (value := getattr(self, name)) is not None:
                    raise InvalidRequestError(name, self.image_rule, value)
            for name, default in (("scale", 1), ("resample", "lanczos")):
                if (value := getattr(self, name)) != default:
                    raise InvalidRequestError(name, self.image_rule, value)
            return
        check_length(self.frames, self.seconds)
        Playback(1.0 if self.fps is None else self.fps, self.scale, self.resample)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the request."""
        return {"modality": "video", "frames": self.frames, "seconds": self.seconds} if self.video else {}

    def check(self, out: Path, index: int, n: int) -> None:
        """Raise an error that names the option if a file of this image or clip cannot be written, or has the name of
        another."""
        if not self.video:
            check_writable(out)
            return
        check_clip_writable(out, self.fps)
        taken = {out.resolve(): "out"}
        for name, file in self.beside(index, n):
            check_writable(file, name)
            if clip_format_of(out) == FOLDER and out.resolve() in file.resolve().parents:
                raise InvalidRequestError(name, "must be outside the folder of frames, --out", file)
            if (other := taken.setdefault(file.resolve(), name)) != name:
                raise InvalidRequestError(name, f"must be another file than --{other}", file)

    def beside(self, index: int, n: int) -> list[tuple[str, Path]]:
        """Return the files that are written beside this clip, each with its option."""
        given = (("poster", self.poster), ("strip", self.strip))
        return [(name, numbered(path, index, n)) for name, path in given if path is not None]

    def keep(self, picture: Picture, path: Path, n: int, where: str) -> Path | None:
        """Write the files of a finished job; return the folder that was created for the first, or None.

        A file that cannot be written keeps no other file from being written; AfterimageError names it at the end.
        """
        if not isinstance(picture, Clip):
            return keep_picture(picture, path, where)
        size: dict[str, Any] = {"scale": self.scale, "resample": self.resample}
        files = [("out", path, partial(picture.save, path, fps=self.fps, **size))]
        saves = {"poster": picture.save_poster, "strip": picture.save_strip}
        for name, file in self.beside(picture.index, n):
            files.append((name, file, partial(saves[name], file, **size)))
        made, failed = list[Path | None](), list[AfterimageError]()
        for name, file, write in files:
            try:
                made.append(keep_picture(picture, file, where, write, name))
            except AfterimageError as error:
                failed.append(error)
        raise_all(failed)
        return made[0]


def numbered(path: Path, index: int, n: int) -> Path:
    """Return the file of one of `n` results."""
    return path if n == 1 else path.with_name(f"{path.stem}-{index + 1}{path.suffix}")
