"""Images in the format that a request asks for."""

from __future__ import annotations

import asyncio
import io
from typing import Literal

from PIL import Image

Output = Literal["png", "jpeg", "webp"]
QUALITY = 95
"""Quality of JPEG and WebP images for which a request names no `output_compression`, 0–100."""


async def converted(png: bytes, output: Output, quality: int | None = None) -> bytes:
    """Return the image in this format; a PNG is returned as stored. Compression takes a thread."""
    if output == "png":
        return png
    return await asyncio.to_thread(_encoded, png, output, QUALITY if quality is None else quality)


def _encoded(png: bytes, output: Output, quality: int) -> bytes:
    out = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").save(out, output.upper(), quality=quality)
    return out.getvalue()
