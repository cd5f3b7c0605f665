"""Results as bytes and back: a PNG for an image, an animated PNG for a clip (docs/adr/0015-animated-png.md)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shared.domain.errors import BlobCorruptError

if TYPE_CHECKING:
    from PIL import Image

Frames = npt.NDArray[np.uint8]
"""RGB pixels of a clip, shape (frames, height, width, 3); one frame for an image."""
FPS = (0.1, 120.0)
"""Lowest and highest speed of a clip, in frames per second."""
DEFAULT_FPS = 8.0
MAX_SIDE = 8192
"""Largest width and height in pixels."""
MAX_PIXELS = 2**29
"""Most pixels of all frames together: 1.5 GiB of memory."""


def encode(images: Sequence[Image.Image], fps: float = DEFAULT_FPS, **options: Any) -> bytes:
    """Return one RGB image as PNG, several as an animated PNG that plays at `fps` without end; equal pixels give equal
    bytes. options: Pillow's, for example `pnginfo`."""
    out = io.BytesIO()
    first, *others = images
    if others:
        # Pillow merges equal neighbours that are blended alike; both ways of blending paint opaque frames alike
        blends = [number % 2 for number in range(len(images))]
        options |= {"save_all": True, "append_images": others, "duration": 1000 / fps, "blend": blends}
    first.save(out, "PNG", **options)
    return out.getvalue()


def decode(png: bytes) -> Frames:
    """Return the frames; BlobCorruptError for bytes that are incomplete, no PNG or beyond the limits."""
    from PIL import Image, ImageSequence

    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            count = int(getattr(image, "n_frames", 1))
            if max(image.size) > MAX_SIDE or image.width * image.height * count > MAX_PIXELS:
                said = f"{count} frames of {image.width}x{image.height}"
                raise ValueError(f"{said} have sides above {MAX_SIDE}, or more than {MAX_PIXELS} pixels")
            frames = [np.asarray(frame.convert("RGB"), dtype=np.uint8) for frame in ImageSequence.Iterator(image)]
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BlobCorruptError(f"the blob is not an image: {error}") from error
    if len(frames) != count:
        raise BlobCorruptError(f"the blob has {len(frames)} of {count} frames")
    return np.stack(frames)


def fps_of(png: bytes) -> float:
    """Return the frames per second by the duration of the first frame; DEFAULT_FPS for an image."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            duration = float(image.info.get("duration", 0.0))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BlobCorruptError(f"the blob is not an image: {error}") from error
    return round(1000 / duration, 6) if duration else DEFAULT_FPS
