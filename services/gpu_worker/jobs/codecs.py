"""Conversion of captured states (by codec), crash checkpoints, and PNG images and clips to bytes and back."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image
from safetensors import SafetensorError
from safetensors.numpy import load, save

from services.gpu_worker.engine.noises import Noise, cells_of, noise_within, seed_of
from services.gpu_worker.engine.rows import NO_WINDOWS, FromCheckpoint, Latent, Pixels
from services.gpu_worker.jobs import keyframes
from services.gpu_worker.jobs.keyframes import Base, Keyframes
from services.gpu_worker.jobs.residual import Residual
from shared.domain.errors import BlobCorruptError, ConfigurationError
from shared.domain.types import NEEDS, Plan, Size, from_json, to_json
from shared.runtime import animated_png

Arrays = dict[str, np.ndarray]
INLINE_BYTES = 64 * 1024
"""Pixels and latents up to this many bytes are encoded and decoded on the event loop, not in a thread: .08 ms for
pixels at 64×64 against .25 ms."""
PREVIEW_FRAMES = 16
"""Frames of a clip's preview, at most."""


class Codec(Protocol):
    """Conversion of a latent (C, h, w) or (C, F, h, w) float32 to bytes and back."""

    def encode(self, latent: Latent, noises: Sequence[Noise], windows: tuple[int, int]) -> bytes: ...
    def decode(self, data: bytes) -> Latent: ...
    def noises(self, data: bytes) -> tuple[Noise, ...]:
        """Return the noises that the state carries; empty: unknown."""
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """A pair that turns a latent into arrays for safetensors and back. The arrays name no seeds."""

    pack: Callable[[Latent], Arrays]
    unpack: Callable[[Arrays], Latent]

    def encode(self, latent: Latent, noises: Sequence[Noise], windows: tuple[int, int]) -> bytes:
        return save(self.pack(latent))

    def decode(self, data: bytes) -> Latent:
        return self.unpack(load(data))

    def noises(self, data: bytes) -> tuple[Noise, ...]:
        return ()


def _levels(bits: int) -> Plain:
    """Quantise to `bits` bits and compress with zlib. Each channel has its own scale, from its largest absolute value.
    The error is at most half a level."""
    most = 2 ** (bits - 1) - 1

    def pack(latent: Latent) -> Arrays:
        scale = _peaks(latent) / most
        levels = np.round(latent / np.where(scale == 0, 1, scale)).astype(np.int8)
        return {"levels": _deflated(levels), "scale": scale, "shape": np.array(latent.shape, dtype=np.int32)}

    def unpack(arrays: Arrays) -> Latent:
        return _inflated(arrays["levels"], np.int8).reshape(arrays["shape"]).astype(np.float32) * arrays["scale"]

    return Plain(pack, unpack)


def _peaks(latent: Latent) -> npt.NDArray[np.float32]:
    """Return the largest absolute value of each channel, in a clip of each channel of each frame."""
    peaks: npt.NDArray[np.float32] = np.abs(latent).max(axis=(-2, -1), keepdims=True)
    return peaks.astype(np.float32)


def _fp8_values() -> npt.NDArray[np.float32]:
    """Return the values of the 127 finite unsigned codes of FP8 E4M3, ascending (Micikevicius et al. 2022, table 1)."""
    code = np.arange(127)
    exponent, mantissa = code >> 3, code & 7
    values = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return values.astype(np.float32)


FP8 = _fp8_values()


def _pack_fp8(latent: Latent) -> Arrays:
    """Scale each channel so that its largest absolute value becomes the largest FP8 value."""
    scale = _peaks(latent) / FP8[-1]
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


CODECS: dict[str, Codec] = {
    "fp16": Plain(
        pack=lambda latent: {"latent": latent.astype(np.float16)},
        unpack=lambda arrays: arrays["latent"].astype(np.float32),
    ),
    # only with fp32 is a resumed run bit-identical to the uninterrupted one
    "fp32": Plain(
        pack=lambda latent: {"latent": np.ascontiguousarray(latent, dtype=np.float32)},
        unpack=lambda arrays: arrays["latent"].astype(np.float32),
    ),
    "int8": _levels(8),
    "fp8": Plain(pack=_pack_fp8, unpack=_unpack_fp8),
    "int6": _levels(6),
    "int4": _levels(4),
    "residual-2bit": Residual(1, bits=2),
    "residual-1bit": Residual(1, bits=1),
    "residual": Residual(2, bits=3),
    "residual-4x4": Residual(4, bits=3),
    "residual-2x2x2": Residual(2, bits=3, frames=2),
    "residual-4x2x2": Residual(2, bits=3, frames=4),
    keyframes.NAME: Keyframes(),
}
"""Codecs by the name that a State carries."""


def encode_state(
    latent: Latent, codec: str, noises: Sequence[Noise] = (), windows: tuple[int, int] = NO_WINDOWS
) -> bytes:
    """Encode (C, h, w) or (C, F, h, w) float32. noises: those that the latent carries; empty: unknown.
    windows: how these noises repeat (draw_noise).

    Raises ConfigurationError for an unknown codec.
    """
    return codec_named(codec).encode(latent, noises, windows)


def encode_run(latents: Mapping[int, Latent], codec: Keyframes) -> dict[int, tuple[bytes, str]]:
    """Encode the states of one run together: {K: latent} → {K: blob, codec with the K that the state needs}.

    States that others need come first. Raises ModelError for values that fp16 does not hold.
    """
    coded = {}
    for k, data in codec.encode_run(latents).items():
        base = keyframes.base_of(data)
        coded[k] = data, f"{keyframes.NAME}{NEEDS}{base.step}" if base else keyframes.NAME
    return coded


def decode_state(data: bytes, codec: str, base: bytes = b"") -> Latent:
    """Decode the bytes of `encode_state` or `encode_run`. Raises BlobCorruptError for other bytes.

    base: the bytes of the state that this one needs (`needed_by`).
    """
    try:
        chosen = codec_named(codec)
        latent = chosen.decode(data, base) if isinstance(chosen, Keyframes) else chosen.decode(data)
    except (SafetensorError, IndexError, KeyError, TypeError, ValueError, struct.error, zlib.error) as error:
        raise BlobCorruptError(f"the blob is not a state in codec {codec!r}: {error}") from error
    if latent.ndim not in (3, 4) or not np.isfinite(latent).all():
        rule = "a state must be (C, h, w) or (C, F, h, w) with finite values"
        raise BlobCorruptError(f"{rule} (codec {codec!r}, got shape {latent.shape})")
    return latent


def decode_run(coded: Mapping[int, tuple[bytes, str]]) -> dict[int, Latent]:
    """Decode the states of `encode_run`, each with the one that it needs."""
    bases = {k: coded[base.step][0] if (base := needed_by(*one)) else b"" for k, one in coded.items()}
    return {k: decode_state(*one, bases[k]) for k, one in coded.items()}


def noises_of(data: bytes, codec: str) -> tuple[Noise, ...]:
    """Return the noises that a state's bytes name; empty: unknown."""
    return codec_named(codec).noises(data)


def needed_by(data: bytes, codec: str) -> Base | None:
    """Return step and sha256 of the state without which this one cannot be decoded; None: it needs no other.

    Raises BlobCorruptError for bytes of another codec.
    """
    if NEEDS not in codec:
        return None
    try:
        return keyframes.base_of(data)
    except (IndexError, ValueError, struct.error, zlib.error) as error:
        raise BlobCorruptError(f"the blob is not a state in codec {codec!r}: {error}") from error


def codec_named(name: str) -> Codec:
    """Return a codec by its name, which may end with the step that the state needs (State.needs)."""
    known = name.partition(NEEDS)[0]
    if known not in CODECS:
        raise ConfigurationError(f"codec must be one of {', '.join(CODECS)} (got {name!r})")
    return CODECS[known]


def encode_checkpoint(
    latent: Latent,
    step: int,
    generator_state: bytes,
    plan: Plan,
    noises: Sequence[Noise] = (),
    previous: Latent | None = None,
    anew: npt.NDArray[np.bool_] | None = None,
) -> bytes:
    """Encode everything that the rest of a run depends on, lossless, with the plan as run (docs/architecture.md,
    Delivery rules). previous: the history of a multistep sampler. anew: see Checkpointed."""
    arrays = {
        "latent": np.ascontiguousarray(latent, dtype=np.float32),
        "generator": np.frombuffer(generator_state, dtype=np.uint8),
        "step": np.array([step], dtype=np.int64),
        "plan": np.frombuffer(to_json(plan), dtype=np.uint8),
        "noises": np.array([seed_of(one) for one in noises], dtype=np.int64),
    }
    if not all(isinstance(one, int) for one in noises):
        arrays["cells"] = np.array([cells_of(one, latent[0].size) for one in noises])
    if previous is not None:
        arrays["previous"] = np.ascontiguousarray(previous, dtype=np.float32)
    if anew is not None:
        arrays["anew"] = anew
    return save(arrays)


def decode_checkpoint(data: bytes) -> tuple[FromCheckpoint, Plan]:
    """Decode the start that continues a checkpointed run, and its plan. Raises BlobCorruptError for other bytes."""
    try:
        arrays = load(data)
        step, generator = int(arrays["step"][0]), arrays["generator"].tobytes()
        seeds = arrays["noises"].tolist() if "noises" in arrays else []  # older checkpoints name none
        cells = arrays.get("cells", np.ones((len(seeds), 1), np.bool_))
        noises = tuple(noise_within(*one) for one in zip(seeds, cells, strict=True))
        latent = arrays["latent"].astype(np.float32)
        start = FromCheckpoint(latent, step, generator, noises, arrays.get("previous"), arrays.get("anew"))
        return start, from_json(Plan, arrays["plan"].tobytes())
    except (SafetensorError, KeyError, ValueError, IndexError) as error:  # pydantic's error is a ValueError
        raise BlobCorruptError(f"the blob is not a checkpoint: {error}") from error


def encode_png(pixels: Pixels, fps: float = animated_png.DEFAULT_FPS) -> bytes:
    """Encode (h, w, 3) uint8 as PNG, and (F, h, w, 3) as an animated PNG that plays at `fps`; equal pixels give equal
    bytes."""
    frames = pixels if pixels.ndim == 4 else pixels[None]
    return animated_png.encode([Image.fromarray(frame) for frame in frames], fps, compress_level=4)


def preview_png(pixels: Pixels, fps: float) -> bytes:
    """Encode a preview. One of a long clip shows every second frame, or fewer, at the clip's own speed."""
    every = -(-len(pixels) // PREVIEW_FRAMES) if pixels.ndim == 4 else 1
    return encode_png(pixels[::every], fps / every)


def decode_png(data: bytes) -> Pixels:
    """Decode an image to RGB (h, w, 3) uint8, an animated one to (F, h, w, 3). Raises BlobCorruptError for bytes that
    are not an image."""
    frames = animated_png.decode(data)
    return frames[0] if len(frames) == 1 else frames


def decode_masked_png(data: bytes) -> tuple[Pixels, npt.NDArray[np.bool_]]:
    """Decode an image to RGB (h, w, 3) uint8, and True for its transparent pixels, (h, w). Raises BlobCorruptError."""
    pixels = decode_png(data)
    with Image.open(io.BytesIO(data), formats=["PNG"]) as image:  # decode_png has checked the bytes
        return pixels, np.asarray(image.convert("RGBA").getchannel("A")) == 0


def fitted(pixels: Pixels, size: Size) -> Pixels:
    """Crop the middle of an image, or of each frame of a clip, to the proportions of `size`, then scale it (Lanczos).

    Cropping keeps the shapes in the image; stretching would not. An image of the right size is returned unchanged.
    """
    height, width = pixels.shape[-3:-1]
    if (width, height) == (size.width, size.height):
        return pixels
    if pixels.ndim == 4:
        return np.stack([fitted(frame, size) for frame in pixels])
    scale = min(width / size.width, height / size.height)
    kept_w, kept_h = size.width * scale, size.height * scale
    left, top = (width - kept_w) / 2, (height - kept_h) / 2
    box = (left, top, left + kept_w, top + kept_h)
    whole = Image.fromarray(pixels).resize((size.width, size.height), Image.Resampling.LANCZOS, box=box)
    return np.asarray(whole, dtype=np.uint8).copy()
