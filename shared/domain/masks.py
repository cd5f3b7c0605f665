"""Masks of a clip's object and background on its latent grid: one bit a cell, packed and deflated (FlexCache §4.3).

The frames, height and width of a mask are those of the latent, F × h × w; an image has one frame. Layout:

    4 bytes      b"AIM1"
    12 bytes     F, h and w, 4 bytes each, least significant byte first
    the rest     zlib stream of the object's bits, then the background's, by frame and row, 8 cells a byte, most
                 significant bit first; the last byte is filled with zeros

zlib's own checksum covers the bits, and the length of the stream must match the shape.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shared.domain.errors import BlobCorruptError
from shared.domain.json_values import Stored

Bits = npt.NDArray[np.bool_]
"""A mask, shape (F, h, w)."""
MAGIC = b"AIM1"
MASK_STEP = -1
"""Step that names an entry's mask in StateLost; latents have steps from 1, the finished image has step 0."""
MOST_RATIO = 1032
"""Bytes that one byte of a zlib stream can hold, at most (zlib's technical details)."""
_HEAD = struct.Struct("<4sIII")


@dataclass(frozen=True, slots=True)
class Mask(Stored):
    """The stored masks of one job's clip or image."""

    key: str
    """Blob key."""
    sha256: str = ""
    bytes: int = 0


def mask_key(job_id: str, sha256: str) -> str:
    """Return the blob key of a job's masks. Equal masks have equal keys, so that a repeated job writes one blob."""
    return f"masks/{job_id}-{sha256[:16]}.mask"


def taken_cells(object_mask: Bits, background_mask: Bits) -> Bits:
    """Return the cells that a stitched latent takes from the clip of the object (FlexCache §4.2.2): those of its
    object, and those where the other clip does not show its background. Shapes (F, h, w)."""
    return object_mask | ~background_mask


def pack(object: Bits, background: Bits) -> bytes:
    """Return both masks, shape (F, h, w) each, as bytes. Equal masks give equal bytes. Raise ValueError for masks of
    another number of dimensions, or of two shapes."""
    shape = object.shape
    if len(shape) != 3 or min(shape) < 1 or shape != background.shape:
        raise ValueError(f"both masks must have one shape (F, h, w) (got {shape} and {background.shape})")
    bits = np.packbits(np.stack([object, background]).astype(np.bool_))
    return _HEAD.pack(MAGIC, *shape) + zlib.compress(bits.tobytes(), 9)


def unpack(data: bytes, shape: tuple[int, ...] | None = None) -> tuple[Bits, Bits]:
    """Return the masks of object and background, shape (F, h, w) each. Raise BlobCorruptError for other bytes than
    those of `pack`, and for masks of another shape. shape: None allows any that this number of bytes can hold."""
    if len(data) < _HEAD.size:
        raise BlobCorruptError(f"a mask must have at least {_HEAD.size} bytes (got {len(data)})")
    magic, *given = _HEAD.unpack_from(data)
    if magic != MAGIC or min(given) < 1:
        raise BlobCorruptError(f"a mask must begin with {MAGIC!r} and its shape (got {magic!r}, {tuple(given)})")
    if shape is not None and tuple(given) != tuple(shape):
        raise BlobCorruptError(f"a mask must have shape {tuple(shape)} (got {tuple(given)})")
    cells = 2 * given[0] * given[1] * given[2]
    size = -(-cells // 8)
    if size > MOST_RATIO * len(data):
        raise BlobCorruptError(f"a mask of {len(data)} bytes must have at most {8 * MOST_RATIO * len(data)} bits")
    stream = zlib.decompressobj()
    try:
        bits = stream.decompress(data[_HEAD.size :], size + 1)  # no more memory than the shape needs
        whole = len(bits) == size and stream.decompress(stream.unconsumed_tail, 1) == b"" and stream.eof
    except zlib.error as error:
        raise BlobCorruptError(f"the mask's bits cannot be read: {error}") from error
    unpacked = np.unpackbits(np.frombuffer(bits, np.uint8)) if whole else None
    if unpacked is None or stream.unused_data or unpacked[cells:].any():
        raise BlobCorruptError(f"a mask of shape {tuple(given)} must have exactly {cells} bits")
    both = unpacked[:cells].astype(np.bool_).reshape(2, *given)
    return both[0], both[1]
