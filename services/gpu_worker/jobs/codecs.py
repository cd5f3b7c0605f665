"""Captured states by codec, crash checkpoints and PNG images, as bytes and back."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from services.gpu_worker.engine.rows import FromCheckpoint, Latent, Pixels
from shared.domain.errors import BlobCorruptError, ConfigurationError
from shared.domain.types import Plan, Size, from_json, to_json

Arrays = dict[str, np.ndarray]
INLINE_BYTES = 64 * 1024
"""Pixels up to this size become a PNG, or come out of one, on the event loop: .08 ms at 64×64 against .25 ms through a
thread."""


@dataclass(frozen=True, slots=True)
class Codec:
    """A pair that turns a latent (C, h, w) float32 into arrays for safetensors and back."""

    pack: Callable[[Latent], Arrays]
    unpack: Callable[[Arrays], Latent]


def _levels(bits: int) -> Codec:
    """Whole levels of the channel's largest value, half a level off at most, packed by how often each occurs."""
    most = 2 ** (bits - 1) - 1

    def pack(latent: Latent) -> Arrays:
        scale = np.abs(latent).max(axis=(1, 2), keepdims=True).astype(np.float32) / most
        levels = np.round(latent / np.where(scale == 0, 1, scale)).astype(np.int8)
        return {"levels": _deflated(levels), "scale": scale, "shape": np.array(latent.shape, dtype=np.int32)}

    def unpack(arrays: Arrays) -> Latent:
        return _inflated(arrays["levels"], np.int8).reshape(arrays["shape"]).astype(np.float32) * arrays["scale"]

    return Codec(pack, unpack)


def _fp8_values() -> npt.NDArray[np.float32]:
    """What the 127 finite codes of E4M3 without a sign stand for, rising (Micikevicius et al. 2022, table 1)."""
    code = np.arange(127)
    exponent, mantissa = code >> 3, code & 7
    values = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return values.astype(np.float32)


FP8 = _fp8_values()


def _pack_fp8(latent: Latent) -> Arrays:
    """The channel's largest value becomes the format's largest."""
    scale = np.abs(latent).max(axis=(1, 2), keepdims=True).astype(np.float32) / FP8[-1]
    size = np.abs(latent) / np.where(scale == 0, 1, scale)
    codes = np.searchsorted((FP8[1:] + FP8[:-1]) / 2, size).astype(np.uint8) | (latent < 0).astype(np.uint8) << 7
    return {"codes": _deflated(codes), "scale": scale, "shape": np.array(latent.shape, dtype=np.int32)}


def _unpack_fp8(arrays: Arrays) -> Latent:
    codes = _inflated(arrays["codes"], np.uint8).reshape(arrays["shape"])
    values: Latent = np.where(codes >> 7, -1, 1) * FP8[np.minimum(codes & 127, 126)] * arrays["scale"]
    return values.astype(np.float32)


def _deflated(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(zlib.compress(values.tobytes(), 6), dtype=np.uint8)


def _inflated(packed: npt.NDArray[np.uint8], dtype: type[np.generic]) -> npt.NDArray[Any]:
    return np.frombuffer(zlib.decompress(packed.tobytes()), dtype=dtype)


CODECS = {
    "fp16": Codec(
        pack=lambda latent: {"latent": latent.astype(np.float16)},
        unpack=lambda arrays: arrays["latent"].astype(np.float32),
    ),
    # the only one whose resumed run equals the uninterrupted one to the bit
    "fp32": Codec(
        pack=lambda latent: {"latent": np.ascontiguousarray(latent, dtype=np.float32)},
        unpack=lambda arrays: arrays["latent"].astype(np.float32),
    ),
    "int8": _levels(8),
    "fp8": Codec(pack=_pack_fp8, unpack=_unpack_fp8),
    "int6": _levels(6),
    "int4": _levels(4),
}
"""By the name a State carries; a new format is one more line."""


def encode_state(latent: Latent, codec: str) -> bytes:
    """(C, h, w) float32 as safetensors; raises ConfigurationError for a codec nobody knows."""
    return save(codec_named(codec).pack(latent))


def decode_state(data: bytes, codec: str) -> Latent:
    """The latent of `encode_state`; raises BlobCorruptError for bytes that are none."""
    try:
        latent = codec_named(codec).unpack(load(data))
    except (SafetensorError, KeyError, TypeError, ValueError, zlib.error) as error:
        raise BlobCorruptError(f"not a state in codec {codec!r}: {error}") from error
    if latent.ndim != 3 or not np.isfinite(latent).all():
        raise BlobCorruptError(f"state in codec {codec!r}: shape {latent.shape} or values that are not finite")
    return latent


def codec_named(name: str) -> Codec:
    if name not in CODECS:
        raise ConfigurationError(f"codec must be one of {', '.join(CODECS)} (got {name!r})")
    return CODECS[name]


def encode_checkpoint(latent: Latent, step: int, generator_state: bytes, plan: Plan) -> bytes:
    """Everything the rest of a run depends on, lossless, and the plan as it is being run (design §8, Checkpoints)."""
    arrays = {
        "latent": np.ascontiguousarray(latent, dtype=np.float32),
        "generator": np.frombuffer(generator_state, dtype=np.uint8),
        "step": np.array([step], dtype=np.int64),
        "plan": np.frombuffer(to_json(plan), dtype=np.uint8),
    }
    return save(arrays)


def decode_checkpoint(data: bytes) -> tuple[FromCheckpoint, Plan]:
    """The start that continues a checkpointed run, and its plan; raises BlobCorruptError for bytes that are none."""
    try:
        arrays = load(data)
        step, generator = int(arrays["step"][0]), arrays["generator"].tobytes()
        start = FromCheckpoint(latent=arrays["latent"].astype(np.float32), step=step, generator_state=generator)
        return start, from_json(Plan, arrays["plan"].tobytes())
    except (SafetensorError, KeyError, ValueError, IndexError) as error:  # pydantic's error is a ValueError
        raise BlobCorruptError(f"not a checkpoint: {error}") from error


def encode_png(pixels: Pixels) -> bytes:
    """(h, w, 3) uint8 as PNG; equal pictures give equal bytes."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format="PNG", compress_level=4)
    return out.getvalue()


def decode_png(data: bytes) -> Pixels:
    """RGB (h, w, 3) uint8; raises BlobCorruptError for bytes that are no picture."""
    try:
        with Image.open(io.BytesIO(data)) as picture:
            return np.asarray(picture.convert("RGB")).copy()
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise BlobCorruptError(f"not a picture: {error}") from error


def fitted(pixels: Pixels, size: Size) -> Pixels:
    """(H, W, 3) of any size as `size`: the largest middle part of its proportions, scaled (Lanczos).

    Cut and not stretched, so that what is in the picture keeps its shape; the same size is the same picture.
    """
    height, width = pixels.shape[:2]
    if (width, height) == (size.width, size.height):
        return pixels
    scale = min(width / size.width, height / size.height)
    kept_w, kept_h = size.width * scale, size.height * scale
    left, top = (width - kept_w) / 2, (height - kept_h) / 2
    box = (left, top, left + kept_w, top + kept_h)
    whole = Image.fromarray(pixels).resize((size.width, size.height), Image.Resampling.LANCZOS, box=box)
    return np.asarray(whole, dtype=np.uint8).copy()
