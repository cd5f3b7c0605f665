"""Uploaded images: what is refused, and what is made of the others."""

from __future__ import annotations

import asyncio
import io
import struct
import threading
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from services.gateway import uploads as module
from services.gateway.uploads import MOST_PIXELS, Uploaded, Uploads
from shared.blobs import open_blobs
from shared.domain.errors import InvalidRequestError
from shared.domain.types import Size

SIZE = Size(32, 16)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def halves(width: int, height: int) -> Image.Image:
    """Red on the left, blue on the right."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, : width // 2, 0] = pixels[:, width // 2 :, 2] = 255
    return Image.fromarray(pixels)


def huge() -> bytes:
    """A PNG of few bytes that says it has 30000×30000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


@pytest.fixture
async def uploads(tmp_path: Any) -> Uploads:
    return Uploads(await open_blobs(f"file:{tmp_path}"))


def pixels(uploaded: Uploaded) -> Any:
    return np.asarray(Image.open(io.BytesIO(uploaded.png)))


@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("JPEG", {"quality": 95}), ("WEBP", {"lossless": True})])
async def test_the_middle_is_cropped_and_scaled(uploads: Uploads, kind: str, options: Any) -> None:
    found = pixels(await uploads.read(encoded(halves(64, 128), kind, **options), b"", SIZE))
    assert found.shape == (16, 32, 3)
    assert np.abs(found[8, 4].astype(int) - (255, 0, 0)).max() < 10
    assert np.abs(found[8, 28].astype(int) - (0, 0, 255)).max() < 10


async def test_a_photo_is_turned_upright_and_loses_its_metadata(uploads: Uploads) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: the first row is the right side
    exif[0x010F] = "a camera"
    found = await uploads.read(encoded(halves(32, 64).rotate(90, expand=True), "JPEG", exif=exif), b"", SIZE)
    assert pixels(found)[8, 4].argmax() == 0
    assert not Image.open(io.BytesIO(found.png)).getexif()


async def test_transparent_pixels_of_an_image_without_mask_are_white(uploads: Uploads) -> None:
    found = await uploads.read(encoded(Image.new("RGBA", (32, 16))), b"", SIZE)
    assert (found.masked, int(pixels(found).min())) == (False, 255)


async def test_a_mask_becomes_the_transparency_of_the_stored_image(uploads: Uploads) -> None:
    mask = Image.new("RGBA", (64, 32), "white")
    mask.paste((0, 0, 0, 0), (0, 0, 32, 32))
    found = await uploads.read(encoded(halves(64, 32)), encoded(mask), SIZE)
    alpha = pixels(found)[..., 3]
    assert found.masked
    assert (alpha[:, :16] == 0).all()
    assert (alpha[:, 16:] == 255).all()
    assert pixels(found)[8, 4, 0] > 200, "hidden pixels stay: the start at a strength below 1 shows them"


@pytest.mark.parametrize(
    ("image", "mask", "said"),
    [
        (b"not an image", b"", "image: must be a whole PNG, JPEG or WebP image"),
        (encoded(halves(32, 16))[:-30], b"", "image: must be a whole PNG"),
        (encoded(halves(32, 16), "GIF"), b"", "image: must be a whole PNG"),
        (huge(), b"", f"image: must have at most {MOST_PIXELS} pixels"),
        (
            encoded(halves(8, 8), save_all=True, append_images=[Image.new("RGB", (8, 8))]),
            b"",
            "image: must be one picture, no animation",
        ),
        (encoded(halves(32, 16)), b"no mask", "mask: must be a whole PNG"),
        (encoded(halves(32, 16)), encoded(Image.new("RGBA", (16, 16))), "mask: must have the size of the image, 32x16"),
        (encoded(halves(32, 16)), encoded(halves(32, 16)), "mask: must have transparent pixels"),
        (encoded(Image.new("L", (4097, 4097))), b"", f"image: must have at most {MOST_PIXELS} pixels .*4097x4097"),
    ],
    ids=["text", "torn", "gif", "bomb", "animation", "text mask", "size of mask", "no transparency", "large"],
)
async def test_what_is_refused(uploads: Uploads, image: bytes, mask: bytes, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        await uploads.read(image, mask, SIZE)


async def test_callers_who_leave_do_not_let_more_images_be_decoded_at_once(
    uploads: Uploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread goes on decoding after its call was cancelled, and the next call began another beside it."""
    begun, over = list[bytes](), threading.Event()

    def decoding(image: bytes, *_given: Any) -> Uploaded:
        begun.append(image)
        over.wait(10.0)
        return Uploaded(image, "", masked=False)

    monkeypatch.setattr(module, "_uploaded", decoding)
    for number in range(4):
        left = [asyncio.create_task(uploads.read(b"%d" % number, b"", SIZE)) for _ in range(2)]
        async with asyncio.timeout(10.0):
            while len(begun) < 2:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # in which a third would begin
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    assert begun == [b"0", b"0"]
    over.set()
    assert (await uploads.read(b"last", b"", SIZE)).png == b"last"
    assert begun == [b"0", b"0", b"last"]
