"""Images in the format that a request asks for."""

from __future__ import annotations

import asyncio
import io
from importlib.util import find_spec
from typing import Literal

from shared.domain.errors import InvalidRequestError

Output = Literal["png", "jpeg", "webp"]
QUALITY = 95
"""Quality of JPEG and WebP images for which a request names no `output_compression`, 0–100."""


def check_output(output: Output) -> None:
    """Raise InvalidRequestError for a format that takes Pillow where it is not installed."""
    if output != "png" and find_spec("PIL") is None:
        raise InvalidRequestError("output_format", "must be png: this gateway is installed without Pillow", output)


async def converted(png: bytes, output: Output, quality: int | None = None) -> bytes:
    """Return the image in this format; a PNG is returned as stored. Compression takes a thread. Raises
    InvalidRequestError for a format that `check_output` refuses."""
    check_output(output)
    if output == "png":
        return png
    return await asyncio.to_thread(_encoded, png, output, QUALITY if quality is None else quality)


def _encoded(png: bytes, output: Output, quality: int) -> bytes:
    from PIL import Image  # gateways in containers do without

    out = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").save(out, output.upper(), quality=quality)
    return out.getvalue()
