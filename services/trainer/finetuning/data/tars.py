"""WebDataset tar files: neighbouring members with one basename are the image and the caption of one sample."""

from __future__ import annotations

import glob
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from PIL import Image

from services.trainer.finetuning.data.folder import CAPTIONS
from services.trainer.finetuning.data.images import Broken, Captioned, is_picture, opened
from shared.domain.errors import ConfigurationError
from shared.domain.types import Size


@dataclass(frozen=True)
class TarFiles:
    """Uncompressed tar files named by a pattern; an image is read at its offset, without the members before it."""

    pattern: str

    def rows(self) -> list[Captioned | Broken]:
        found = [row for path in self.files() for row in _rows_of(path)]
        if not found:
            raise ConfigurationError(f"data.path: no image in the tar files {self.pattern}")
        return found

    def files(self) -> list[Path]:
        """Return the tar files in the order of their names. Raises ConfigurationError without any."""
        whole = Path(self.pattern)  # a file's own name may have brackets
        paths = [whole] if whole.is_file() else [Path(path) for path in sorted(glob.glob(self.pattern))]
        if not paths:
            raise ConfigurationError(f"data.path: no tar file matches {self.pattern}")
        return paths

    def image(self, row: Captioned, size: Size | None) -> Image.Image:
        path, start, length = row.place
        with open(path, "rb") as file:
            file.seek(start)
            return opened(file.read(length))


def _rows_of(path: Path) -> list[Captioned | Broken]:
    found: list[Captioned | Broken] = []
    try:
        with tarfile.open(path, mode="r:") as archive:  # compressed files cannot be read at an offset
            for key, members in groupby(_files(archive), key=lambda one: _key(one.name)):
                if (row := _row(path, key, list(members), archive)) is not None:
                    found.append(row)
    except (tarfile.TarError, EOFError) as error:
        if not found:
            raise ConfigurationError(
                f"data.path: {path} cannot be read as an uncompressed tar file: {error}"
            ) from error
        found.append(Broken(str(path), f"the file ends early: {error}"))
    except OSError as error:
        raise ConfigurationError(f"data.path: {path} cannot be read: {error.strerror}") from error
    return found


def _files(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    return (member for member in archive if member.isfile())


def _key(name: str) -> str:
    """Return the path up to the first dot of the file's name, as WebDataset groups members."""
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.split(".", 1)[0]


def _row(path: Path, key: str, members: list[tarfile.TarInfo], archive: tarfile.TarFile) -> Captioned | Broken | None:
    """Return the sample of some members; None for a group without an image."""
    image = next((one for one in members if is_picture(one.name)), None)
    if image is None:
        return None
    name = f"{path.name}/{image.name}"
    caption = _caption(members, archive)
    if caption is None:
        return Broken(name, f"has no caption beside it ({key}.txt, or {key}.json with one of {', '.join(CAPTIONS)})")
    return Captioned(name, caption, (str(path.absolute()), image.offset_data, image.size))


def _caption(members: list[tarfile.TarInfo], archive: tarfile.TarFile) -> str | None:
    for member in members:
        if not member.name.endswith((".txt", ".caption", ".json")) or (file := archive.extractfile(member)) is None:
            continue
        try:
            text = file.read().decode("utf-8")
            if not member.name.endswith(".json"):
                return text.strip()
            keys = json.loads(text)
            if isinstance(said := next((keys[key] for key in CAPTIONS if key in keys), None), str):
                return said
        except (ValueError, TypeError):
            continue
    return None
