"""Index of a data set: every usable row with its image size, found once and kept in the folder of the run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from services.trainer.finetuning.data.folder import ImageFolder
from services.trainer.finetuning.data.images import Broken, Captioned, Source
from services.trainer.finetuning.data.scenes import Scenes
from services.trainer.finetuning.data.tars import TarFiles
from services.trainer.finetuning.settings import DataSettings
from shared.domain.errors import ConfigurationError
from shared.domain.types import Size
from shared.runtime.progress import Remaining

FILE, BROKEN = "index.jsonl", "broken.jsonl"
THREADS = 8
SHOWN = 5
"""Broken images that a message names; all are in broken.jsonl."""


@dataclass(frozen=True, slots=True)
class Indexed:
    """A row that can be trained on."""

    row: Captioned
    size: Size
    """Pixels of its image."""


def source_of(settings: DataSettings, seed: int) -> Source:
    """Return the source that `path` names. Raises ConfigurationError for neither folder, tar files nor scenes."""
    if settings.path == "scenes":
        return Scenes(settings.scenes, settings.sprites, seed)
    if settings.path.endswith(".tar"):
        return TarFiles(settings.path)
    if not Path(settings.path).is_dir():
        missing = "" if Path(settings.path).exists() else ", which does not exist"
        raise ConfigurationError(
            f"data.path: must be a folder with metadata.jsonl, tar files such as shards/*.tar, or scenes "
            f"(got {settings.path!r}{missing})"
        )
    return ImageFolder(Path(settings.path))


def make_index(source: Source, folder: Path, say: Callable[[str], None]) -> None:
    """Decode every image once, and write index.jsonl and broken.jsonl into `folder`, unless they are there.

    Broken images are left out; `say` gets a line with their number and the first names. Raises ConfigurationError if
    no image is left.
    """
    if (folder / FILE).exists():
        return
    rows, broken = list[Indexed](), list[Broken]()
    found = source.rows()
    remaining = Remaining("reading images", len(found), say=say)
    with ThreadPoolExecutor(THREADS) as threads:
        for one in threads.map(lambda row: _checked(source, row), found):
            remaining.advance()
            if isinstance(one, Broken):
                broken.append(one)
            else:
                rows.append(one)
    named = "; ".join(f"{one.name}: {one.why}" for one in broken[:SHOWN])
    if not rows:
        raise ConfigurationError(f"data.path: none of its {len(broken)} images can be used; {named}")
    if broken:
        more = f"; all are in {folder / BROKEN}" if len(broken) > SHOWN else ""
        say(f"skipped {len(broken)} of {len(found)} images: {named}{more}")
    _write(folder / BROKEN, ({"name": one.name, "why": one.why} for one in broken))
    _write(
        folder / FILE,
        (
            {
                "name": one.row.name,
                "caption": one.row.caption,
                "place": one.row.place,
                "width": one.size.width,
                "height": one.size.height,
            }
            for one in rows
        ),
    )


def read_index(folder: Path) -> list[Indexed]:
    """Return the rows that `make_index` wrote. Raises ConfigurationError for an unreadable file."""
    try:
        lines = (folder / FILE).read_text(encoding="utf-8").splitlines()
        return [_row(json.loads(line)) for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{folder / FILE}: cannot be read: {error}; remove it to read the images again") from (
            error
        )


def _checked(source: Source, row: Captioned | Broken) -> Indexed | Broken:
    if isinstance(row, Broken):
        return row
    try:
        width, height = source.image(row, None).size
    except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises for files that it cannot decode
        return Broken(row.name, getattr(error, "strerror", None) or str(error))
    return Indexed(row, Size(width, height))


def _row(keys: dict[str, object]) -> Indexed:
    place = keys["place"]
    if not isinstance(place, list):
        raise TypeError(f"place must be a list (got {place!r})")
    row = Captioned(str(keys["name"]), str(keys["caption"]), tuple(place))
    return Indexed(row, Size(int(str(keys["width"])), int(str(keys["height"]))))


def _write(path: Path, lines: Iterable[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    os.replace(partial, path)
