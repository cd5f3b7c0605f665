"""The header of a state that the codecs `residual` and `residual-…` store: its form, its noises and their cells.

Layout; a varint holds 7 bits a byte, least significant first, and bit 7 is set where more follow:

    1 byte       version: 1 for an image, 2 for a clip, 3 for a clip with FreeNoise; 4 and 5: as 2 and 3, with averages
                 over several frames; 16 more where noises have cells of their own
    1 byte       bits 0-1: log2 of a cell's side; bits 2-4: bits per average, less one; bits 5-7: number of noises
    varints      C, h, w of an image; C, F, h, w of a clip; C, F, h, w, window, stride with FreeNoise (draw_noise);
                 then the frames of an average in versions 4 and 5
    per noise    seed (varint), c (int8, in 1/64)
    cells        only in versions from 16: number of bytes (varint) and zlib stream of each noise's cells, one bit per
                 cell by frame and row, most significant bit first; those of the noise before are subtracted (XOR)
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from services.gpu_worker.engine.noises import Noise, cells_of, noise_within, seed_of
from services.gpu_worker.engine.rows import NO_WINDOWS

NUMBERS = {1: (3, 0, 0), 2: (4, 0, 0), 3: (4, 2, 0), 4: (4, 0, 1), 5: (4, 2, 1)}
"""Numbers in the header by version: sides of the latent, window and stride, frames of an average."""
WITH_CELLS = 16
"""Added to the version where noises have cells of their own."""
Cell = tuple[int, int, int]
"""Frames, rows and columns of an average."""


@dataclass(frozen=True, slots=True)
class Header:
    """The form of a state and its noises."""

    cell: Cell
    """Frames, rows and columns of an average; 1 frame in an image."""
    bits: int
    """Bits of an average."""
    shape: tuple[int, ...]
    windows: tuple[int, int]
    """Window and stride of FreeNoise, see draw_noise."""
    weights: dict[Noise, int]
    """c in 1/64 by noise."""

    def write(self) -> bytes:
        """Return the bytes of the header."""
        (frames, side, _), noises = self.cell, self.weights
        repeats, several = () if self.windows == NO_WINDOWS else self.windows, (frames,) if frames > 1 else ()
        counts = len(self.shape), len(repeats), len(several)
        version = next(version for version, known in NUMBERS.items() if known == counts)
        cells = b"" if all(isinstance(one, int) for one in noises) else _packed_cells(noises, math.prod(self.shape[1:]))
        form = side.bit_length() - 1 | self.bits - 1 << 2 | len(noises) << 5
        head = bytes([version + WITH_CELLS * bool(cells), form])
        head += b"".join(_varint(number) for number in (*self.shape, *repeats, *several))
        head += b"".join(_varint(seed_of(one)) + c.to_bytes(1, "big", signed=True) for one, c in noises.items())
        return head + cells

    @classmethod
    def read(cls, data: bytes) -> tuple[Header, int]:
        """Return the header, and the index of the first byte after it.

        Raises ValueError or IndexError for other bytes."""
        version = data[0] & ~WITH_CELLS
        if version not in NUMBERS:
            raise ValueError(f"version must be one of {', '.join(map(str, NUMBERS))} (got {version})")
        at, numbers, weights = 2, list[int](), dict[Noise, int]()
        for _ in range(sum(NUMBERS[version])):
            number, at = _read_varint(data, at)
            numbers.append(number)
        sides, repeats, several = NUMBERS[version]
        window, stride = numbers[4:6] if repeats else NO_WINDOWS
        frames = numbers[-1] if several else 1
        if frames < 1:
            raise ValueError("an average must have at least 1 frame (got 0)")
        if window and not 1 <= stride <= window:
            raise ValueError(f"stride must be from 1 to window, {window} (got {stride})")
        for _ in range(data[1] >> 5):
            seed, at = _read_varint(data, at)
            weights[seed] = int.from_bytes(data[at : at + 1], "big", signed=True)
            at += 1
        if data[0] & WITH_CELLS:
            weights, at = _with_cells(weights, data, at, math.prod(numbers[1:sides]))
        side, bits = 1 << (data[1] & 3), (data[1] >> 2 & 7) + 1
        return cls((frames, side, side), bits, tuple(numbers[:sides]), (window, stride), weights), at


def _packed_cells(noises: Iterable[Noise], cells: int) -> bytes:
    bits = np.packbits([cells_of(one, cells) for one in noises], axis=1)
    bits[1:] ^= bits[:-1].copy()  # two noises that share the cells between them cost the bits of one
    stream = zlib.compress(bits.tobytes(), 9)
    return _varint(len(stream)) + stream


def _with_cells(weights: dict[Noise, int], data: bytes, at: int, cells: int) -> tuple[dict[Noise, int], int]:
    """Return the weights by noise within its cells, and the index after the cells."""
    size, at = _read_varint(data, at)
    wanted = len(weights) * -(-cells // 8)
    stream = zlib.decompressobj()
    bits = stream.decompress(data[at : at + size], wanted + 1)  # no more memory than the shape needs
    if len(bits) != wanted or not stream.eof:
        raise ValueError(f"{len(weights)} noises must have {wanted} bytes of cells (got {len(bits)})")
    rows = np.bitwise_xor.accumulate(np.frombuffer(bits, np.uint8).reshape(len(weights), -1))
    within = np.unpackbits(rows, axis=1, count=cells).astype(np.bool_)
    named = zip(weights.items(), within, strict=True)
    return {noise_within(seed_of(one), some): c for (one, c), some in named}, at + size


def _varint(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + _varint(rest) if rest else bytes([low])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that starts at index `at`, and the index after it."""
    number = shift = 0
    while data[at] & 128:
        number, shift, at = number | (data[at] & 127) << shift, shift + 7, at + 1
    return number | data[at] << shift, at + 1
