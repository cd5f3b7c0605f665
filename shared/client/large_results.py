"""The bytes of a result that is too large for one message, read in parts."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from shared.client.views import Clip, Failed, Picture
from shared.domain.errors import AfterimageError, BlobCorruptError
from shared.runtime.animated_png import fps_of

P = TypeVar("P", bound=Picture)
ReadPart = Callable[[str, int], Awaitable[bytes]]
"""Function that returns the bytes of a job's result from an offset on."""


async def whole(picture: P, read: ReadPart) -> P:
    """Return the job with all bytes of its result; BlobCorruptError if they do not match its hash.

    A large result comes without its bytes, or with the first of them. A clip whose model is not served any more gets
    the speed of its file.
    """
    data = bytearray(picture.png)
    if len(data) < picture.picture_bytes:
        while len(data) < picture.picture_bytes and (part := await read(picture.job.id, len(data))):
            data += part
        if hashlib.sha256(data).hexdigest() != picture.picture_sha256:
            said = "the parts of its result do not match its hash; read it again"
            raise BlobCorruptError(f"job {picture.job.id}: {said}")
        picture = replace(picture, png=bytes(data))
    if isinstance(picture, Clip) and not picture.fps:
        picture = replace(picture, fps=fps_of(picture.png))
    return picture


async def whole_or_failed(image: Picture | Failed, read: ReadPart) -> Picture | Failed:
    """Return one of several images with all its bytes; one whose result cannot be read counts as failed."""
    if isinstance(image, Failed):
        return image
    try:
        return await whole(image, read)
    except AfterimageError as error:
        return Failed(image.index, image.job.id, error)
