"""Rows of a data set and where they come from."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from shared.domain.types import Size

Pixels = npt.NDArray[np.uint8]
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")


@dataclass(frozen=True, slots=True)
class Captioned:
    """One image with its caption, before it is read."""

    name: str
    """Path inside the data set, for messages."""
    caption: str
    place: tuple[Any, ...]
    """Where its source finds the image; JSON values."""


@dataclass(frozen=True, slots=True)
class Broken:
    """One row that cannot be used."""

    name: str
    why: str


class Source(Protocol):
    """A kind of data set."""

    def rows(self) -> list[Captioned | Broken]:
        """Return every row, in an order that depends on the data alone. Raises ConfigurationError without any."""
        ...

    def files(self) -> list[Path]:
        """Return the files that rows and images depend on, whether they exist or not; none for rendered images."""
        ...

    def image(self, row: Captioned, size: Size | None) -> Image.Image:
        """Return the image of a row in RGB; a source that renders its images renders one of `size`.

        Raises OSError, SyntaxError or ValueError for an image that cannot be decoded.
        """
        ...


def opened(content: bytes) -> Image.Image:
    """Decode an image file into RGB, turned as its EXIF data says; transparent pixels become white.

    Raises OSError, SyntaxError or ValueError for a file that cannot be decoded.
    """
    from PIL import ImageOps

    try:
        file = Image.open(io.BytesIO(content))
    except Image.DecompressionBombError as error:  # a subclass of Exception alone
        raise ValueError(str(error)) from error
    with file:
        upright = ImageOps.exif_transpose(file)
        if upright.mode in ("RGBA", "LA", "PA") or "transparency" in upright.info:
            upright = upright.convert("RGBA")
            white = Image.new("RGBA", upright.size, "white")
            return Image.alpha_composite(white, upright).convert("RGB")
        return upright.convert("RGB")


def is_picture(name: str) -> bool:
    return Path(name).suffix.lower() in SUFFIXES
