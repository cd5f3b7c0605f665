"""A folder of images with their captions in metadata.jsonl, the layout of the datasets library's image folders."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from services.trainer.finetuning.data.images import Broken, Captioned, opened
from shared.domain.errors import ConfigurationError
from shared.domain.types import Size

METADATA = "metadata.jsonl"
CAPTIONS = ("text", "caption", "prompt")


@dataclass(frozen=True)
class ImageFolder:
    """Images named in the lines of metadata.jsonl: `{"file_name": "fox.png", "text": "a red fox"}`."""

    folder: Path

    def rows(self) -> list[Captioned | Broken]:
        path = self.folder / METADATA
        try:
            lines = path.read_text(encoding="utf-8").split("\n")  # captions may hold other separators
        except FileNotFoundError:
            raise ConfigurationError(
                f"data.path: no {METADATA} in {self.folder}; it needs a line for each image, such as "
                '{"file_name": "fox.png", "text": "a red fox"}'
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"data.path: {path} cannot be read: {error}") from error
        found = [self._row(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        if not found:
            raise ConfigurationError(f"data.path: {path} names no image")
        return found

    def _row(self, number: int, line: str) -> Captioned | Broken:
        where = f"{METADATA} line {number}"
        try:
            keys = json.loads(line)
            name = keys["file_name"]
            caption = next(keys[key] for key in CAPTIONS if key in keys)
        except (ValueError, TypeError, KeyError):
            return Broken(where, "must be a JSON object with file_name and text")
        except StopIteration:
            return Broken(where, f"has no caption ({', '.join(CAPTIONS)})")
        if not isinstance(name, str) or not isinstance(caption, str):
            return Broken(where, "file_name and text must be strings")
        if not (self.folder / name).resolve().is_relative_to(self.folder.resolve()):
            return Broken(where, f"file_name must be inside the folder (got {name!r})")
        return Captioned(name, caption, (name,))

    def files(self) -> list[Path]:
        images = [self.folder / row.place[0] for row in self.rows() if isinstance(row, Captioned)]
        return [self.folder / METADATA, *images]

    def image(self, row: Captioned, size: Size | None) -> Image.Image:
        return opened((self.folder / row.place[0]).read_bytes())
