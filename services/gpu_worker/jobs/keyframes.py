"""Codec `keyframes`: the states of one run of a clip, stored together (FlexCache §4.1, §4.3).

*Within a step* (§4.1.1): from the last frame to the first, a frame with a similar frame before it is left out and later
repeated. The others are the step's key frames.

*Between steps* (§4.1.2): each step keeps its first frame. Of the key frames that all steps share, one base step keeps
the differences to its first frame, Diff_base. Another step s predicts such a frame as first_s + α_s · Diff_base, with
α_s by least squares (eq. 2). The base is the step whose predictions are the most similar; every step is tried.

*Extra frames*: key frames of some steps only, and each frame that would be less similar than `least` after decoding.

The states of the other steps need the base's blob and name its sha256, so a missing or changed base is a hole. Where
the cache evicts a base, the states that need it leave with it (services/cache_maintainer/eviction/scored.py).

Layout, little endian, frames as fp16:

    1 byte       version, 1
    uint16       bytes of the table
    table        uint16, deflated: number of sides, sides, step of the base (0: none), number of stored frames, their
                 indices, for each frame the index of the frame that it repeats (its own: not repeated)
    float32      α, and 32 bytes: sha256 of the base; only with a base
    frames       the stored frames; then, without a base, the differences of the frames that are neither stored nor
                 repeated
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from services.gpu_worker.engine.noises import Noise
from services.gpu_worker.engine.rows import Latent
from shared.domain.errors import ModelError

NAME = "keyframes"
VERSION = 1
Frames = npt.NDArray[Any]
"""Frames as rows, (F, C·h·w)."""


class Base(NamedTuple):
    """The state that another one needs."""

    step: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Keyframes:
    """Both bounds are cosines of a frame's values."""

    similar: float = 0.99
    """Least similarity of a frame to the frame that is repeated in its place (§5, Fig. 14a)."""
    least: float = 0.995
    """Least similarity of each frame after decoding to the frame as it was (§6.2.4); other frames are stored."""

    def encode(self, latent: Latent, noises: Sequence[Noise], windows: tuple[int, int]) -> bytes:
        """Encode a state alone: it needs no other."""
        return self.encode_run({1: latent})[1]

    def encode_run(self, latents: Mapping[int, Latent]) -> dict[int, bytes]:
        """Encode a run's states by K, (C, F, h, w) or (C, h, w) of equal shape; the base comes first.

        Raise ModelError for values that fp16 does not hold.
        """
        coded = self.split({k: _rows(latent) for k, latent in latents.items()})
        shape, blobs, sha256 = next(iter(latents.values())).shape, dict[int, bytes](), b""
        for k, part in coded.items():
            blobs[k] = _packed(part, shape, sha256)
            sha256 = sha256 or hashlib.sha256(blobs[k]).digest()
        return blobs

    def split(self, states: Mapping[int, Frames]) -> dict[int, Part]:
        """Return the coded parts of a run's states by K, the base first."""
        states = {k: states[k] for k in sorted(states)}  # the order decides how means are rounded, and with them ties
        halves = {k: _half(rows) for k, rows in states.items()}
        repeats = {k: self.repeats(rows) for k, rows in states.items()}
        own = np.arange(len(next(iter(states.values()))))
        common = np.flatnonzero(np.all([source == own for source in repeats.values()], axis=0))[1:]
        base = max(states, key=lambda k: (_likeness(states, common, k), k))
        differences = _half(states[base][common] - halves[base][0])
        coded = {base: self._part(states[base], halves[base], repeats[base], common, differences, 0)}
        common, differences = coded[base].common, coded[base].differences
        for k in sorted(states.keys() - {base}):
            coded[k] = self._part(states[k], halves[k], repeats[k], common, differences, base)
        return coded

    def repeats(self, rows: Frames) -> npt.NDArray[np.intp]:
        """Return for each frame the index of the key frame that is repeated in its place; key frames have their own."""
        likeness, source = similarities(rows), np.arange(len(rows))
        for m in range(len(rows) - 1, 0, -1):  # from the last frame to the first (§4.1.1)
            nearest = int(likeness[m, :m].argmax())
            source[m] = nearest if likeness[m, nearest] >= self.similar else m
        for m in range(1, len(rows)):  # a frame that was itself left out cannot be repeated
            first = source[source[m]]
            source[m] = first if likeness[m, first] >= self.similar else m
        return source

    def _part(
        self, rows: Frames, halves: Frames, source: Frames, common: Frames, differences: Frames, base: int
    ) -> Part:
        """Store what the common key frames do not give: first frame, extra frames, frames that miss `least`."""
        alpha = _factor(rows[common] - rows[0], differences) if base else 1.0
        decoded, source = halves.copy(), source.copy()
        decoded[common] = halves[0] + np.float32(alpha) * differences
        keys = np.flatnonzero(source == np.arange(len(rows))).tolist()
        near = similarity(decoded, rows) >= self.least
        stored: list[int] = [m for m in keys if m not in common or not near[m]]
        decoded[stored] = halves[stored]
        for m in np.flatnonzero(source != np.arange(len(rows))).tolist():
            tried = [source[m], *stored]
            likeness = similarity(decoded[tried], rows[m])
            source[m] = tried[int(likeness.argmax())] if likeness.max() >= self.least else m
            if source[m] == m:
                stored.append(m)
        stored = sorted(stored)
        kept = ~np.isin(common, stored)
        return Part(base if kept.any() else 0, alpha, stored, source, halves[stored], common[kept], differences[kept])

    def decode(self, data: bytes, base: bytes = b"") -> Latent:
        """Raise ValueError, IndexError, struct.error or zlib.error for bytes that are not such a state, and ValueError
        for another base than the one that it needs."""
        part, shape = _read(data)
        given, needed = part, base_of(data)
        if needed is not None:
            if hashlib.sha256(base).hexdigest() != needed.sha256:
                raise ValueError(f"the state needs the blob of step {needed.step} with sha256 {needed.sha256}")
            given, _ = _read(base)
        own = part.source == np.arange(len(part.source))
        own[part.stored] = False
        predicted, at = np.flatnonzero(own), {m: row for row, m in enumerate(given.common.tolist())}
        frames = np.zeros((len(own), part.frames.shape[1]), np.float32)
        frames[part.stored] = part.frames
        differences = given.differences[[at[m] for m in predicted.tolist()]]
        frames[predicted] = frames[0] + np.float32(part.alpha) * differences
        latent: Latent = frames[part.source].reshape(-1, shape[0], *shape[-2:]).swapaxes(0, 1)
        return np.ascontiguousarray(latent.reshape(shape))

    def noises(self, data: bytes) -> tuple[Noise, ...]:
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One state's part of a run."""

    base: int
    """Step of the state whose differences this one needs; 0: none."""
    alpha: float
    stored: list[int]
    """Indices of the frames stored as they are: the first, and the extra frames."""
    source: Frames
    frames: Frames
    """The stored frames, (stored, C·h·w)."""
    common: Frames
    """Indices of the frames that the first frame and the base's differences give."""
    differences: Frames
    """The base's differences of these frames, (common, C·h·w)."""


def base_of(data: bytes) -> Base | None:
    """Return the state that these bytes need; None: no other. Raise as `Keyframes.decode` does."""
    table, end = _table(data)
    step = int(table[table[0] + 1])
    return Base(step, data[end + 4 : end + 36].hex()) if step else None


def similarity(one: Frames, other: Frames) -> npt.NDArray[np.float32]:
    """Return the cosine of each two rows; 1 for two rows of zeros."""
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    cosines = (one * other).sum(axis=-1) / np.where(lengths > 0, lengths, 1)
    found: npt.NDArray[np.float32] = np.where(np.all(one == other, axis=-1), 1, cosines).astype(np.float32)
    return found


def similarities(rows: Frames) -> npt.NDArray[np.float32]:
    """Return the cosines of all pairs of rows; 1 for two rows of zeros."""
    lengths = np.linalg.norm(rows, axis=1)
    unit = rows / np.where(lengths > 0, lengths, 1)[:, None]
    found: npt.NDArray[np.float32] = (unit @ unit.T).astype(np.float32)
    empty = lengths == 0
    found[np.ix_(empty, empty)] = 1
    return found


def _likeness(states: Mapping[int, Frames], common: Frames, base: int) -> float:
    """Return the mean similarity of the other steps' predicted frames to themselves, were this step the base."""
    if not len(common):
        return 1.0
    differences = states[base][common] - states[base][0]
    found = []
    for rows in states.values():
        alpha = _factor(rows[common] - rows[0], differences)
        found.append(similarity(rows[0] + np.float32(alpha) * differences, rows[common]).mean())
    return float(np.mean(found))


def _factor(differences: Frames, base: Frames) -> float:
    """Return α: the least-squares factor of the base's differences (eq. 2)."""
    energy = float((base.astype(np.float64) ** 2).sum())
    return float((differences.astype(np.float64) * base).sum()) / energy if energy else 0.0


def _half(values: Frames) -> Frames:
    """Return the values as fp16 holds them."""
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16).astype(np.float32)
    if not np.isfinite(halves).all():
        raise ModelError("a state must have finite values that fp16 holds to be stored as key frames")
    return halves


def _rows(latent: Latent) -> Frames:
    """Return (C, F, h, w) or (C, h, w) as frames."""
    frames = latent if latent.ndim == 4 else latent[:, None]
    return np.ascontiguousarray(frames.swapaxes(0, 1)).reshape(frames.shape[1], -1)


def _packed(part: Part, shape: tuple[int, ...], sha256: bytes) -> bytes:
    numbers = [len(shape), *shape, part.base, len(part.stored), *part.stored, *part.source]
    table = zlib.compress(np.array(numbers, "<u2").tobytes(), 9)
    data = struct.pack("<BH", VERSION, len(table)) + table
    if part.base:
        return data + struct.pack("<f", part.alpha) + sha256 + part.frames.astype("<f2").tobytes()
    return data + np.concatenate([part.frames, part.differences]).astype("<f2").tobytes()


def _table(data: bytes) -> tuple[npt.NDArray[Any], int]:
    """Return the table, and the index of the first byte after it."""
    version, size = struct.unpack_from("<BH", data)
    if version != VERSION:
        raise ValueError(f"version must be {VERSION} (got {version})")
    return np.frombuffer(zlib.decompress(data[3 : 3 + size]), "<u2").astype(np.intp), 3 + size


def _read(data: bytes) -> tuple[Part, tuple[int, ...]]:
    """Return the part and the latent's shape. Without a base, `common` and `differences` are those of the frames that
    are neither stored nor repeated."""
    table, end = _table(data)
    sides = int(table[0])
    shape, base, count = tuple(map(int, table[1 : sides + 1])), int(table[sides + 1]), int(table[sides + 2])
    if sides not in (3, 4) or min(shape) < 1:
        raise ValueError(f"a state must have 3 or 4 sides of at least 1 (got {shape})")
    stored, source = table[sides + 3 : sides + 3 + count], table[sides + 3 + count :]
    frames = shape[1] if sides == 4 else 1
    if len(source) != frames or max(stored.max(), source.max()) >= frames or not (source[source] == source).all():
        raise ValueError(f"the table does not fit {frames} frames")
    alpha = 1.0
    if base:
        alpha, end = struct.unpack_from("<f", data, end)[0], end + 36
    own = source == np.arange(frames)
    own[stored] = False
    common = np.flatnonzero(own) if not base else np.zeros(0, np.intp)
    values = np.frombuffer(data, "<f2", offset=end).astype(np.float32)
    rows = values.reshape(count + len(common), shape[0] * shape[-2] * shape[-1])
    return Part(base, alpha, stored.tolist(), source, rows[:count], common, rows[count:]), shape
