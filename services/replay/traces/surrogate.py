"""Compute surrogate similarities between prompts and finished images, for traces without images: `modm (surrogate)`.

MoDM finds an image by the cosine of the prompt's embedding and the image's own (MoDM §3.2, eq. 1). Images of the
bundled pair of models show how that cosine depends on the similarity of the two prompts. It rises along a curve, from
unrelated prompts (share 0) to a prompt with its own image (share 1), with a random spread. bench/picture_similarity.py
measured the curve's shares and spreads. The two ends belong to the encoder: MODM_ENDS are those of CLIP ViT-L/14, the
encoder of MoDM's thresholds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from services.replay.traces.neighbours import Neighbours
from shared.models.k_table import MODM, KTable

FILE = Path(__file__).with_name("picture_similarity.json")
MODM_ENDS = (0.0975, 0.2855)
"""Cosines of CLIP ViT-L/14. The upper one is MoDM's mean CLIP score of images with their own prompts (Table 2: 28.55).
The lower one is not in the paper. It is set such that the infinite cache of sd_trace_100k hits 92.8 %, as MoDM does on
DiffusionDB with 100,000 images (§7.1)."""
BYTES_PER_PIXEL = 1.4e6 / 1024**2
"""Bytes of a stored image per pixel: 1.4 MB at 1024×1024 (MoDM §3.1)."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Curve:
    """Map from the similarity of two prompts to the share of the way from unrelated (0) to the own image (1)."""

    similarity: tuple[float, ...]
    """Similarities, ascending."""
    share: tuple[float, ...]
    spread: tuple[float, ...]
    """Standard deviation of the share."""

    def of(self, similarities: Floats, chance: Floats) -> Floats:
        """Return shares for `similarities`; `chance` are standard normal numbers."""
        mean = np.interp(similarities, self.similarity, self.share)
        made: Floats = mean + chance * np.interp(similarities, self.similarity, self.spread)
        return made


def read_curve(path: Path = FILE) -> tuple[Curve, dict[str, Any]]:
    """Return the measured curve, and the whole measurement file."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return Curve(tuple(found["similarity"]), tuple(found["share"]), tuple(found["spread"])), found


@dataclass(frozen=True)
class PictureLoad:
    """Inputs of policies that look up images: lists in order of the surrogate, and MoDM's table for it."""

    curve: Curve
    ends: tuple[float, float]
    """Cosines of text and image: unrelated, and the prompt's own image."""
    text_of: Ints
    neighbours: Neighbours
    """Neighbour lists by the surrogate's cosine."""
    text_floor: float
    """Prompt similarity below which an image is not compared."""
    table: KTable = MODM

    def best(self, request: int, near: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
        """Turn pairs (request, similarity of prompts) into (request, surrogate cosine), best first, without those that
        allow no start."""
        others = np.array([other for other, _ in near], np.int64)
        cosines = np.array([cosine for _, cosine in near])
        made = cosines_of(self.curve, self.ends, self.text_of[request], others, cosines)
        order = np.argsort(-made, kind="stable")
        order = order[made[order] > self.table.lowest_similarity]
        return list(zip(others[order].tolist(), made[order].tolist(), strict=True))


def picture_load(curve: Curve, ends: tuple[float, float], text_of: Ints, near: Neighbours) -> PictureLoad:
    """Turn each request's neighbours by prompt similarity into neighbours by the surrogate similarity to their images.

    The surrogate's random spread can lift distant prompts, so `near` should reach far below the latents' threshold.
    """
    listed = near.indices >= 0
    made = np.full(near.similarities.shape, -1.0)
    requests, _ = np.nonzero(listed)
    made[listed] = cosines_of(
        curve, ends, text_of[requests], near.indices[listed].astype(np.int64), near.similarities[listed].astype(float)
    )
    made[made <= MODM.lowest_similarity] = -1.0
    order = np.argsort(-made, axis=1, kind="stable")
    similarities = np.take_along_axis(made, order, axis=1).astype(np.float32)
    indices = np.where(similarities > 0, np.take_along_axis(near.indices, order, axis=1), -1).astype(np.int32)
    lists = Neighbours(indices, similarities, near.cut, MODM.lowest_similarity)
    return PictureLoad(curve, ends, text_of, lists, near.floor)


def cosines_of(
    curve: Curve, ends: tuple[float, float], text: Ints | np.int64, others: Ints, similarities: Floats
) -> Floats:
    """Return the cosines of prompts `text` (rows of texts) with images of requests `others`, fixed for each pair."""
    low, high = ends
    made: Floats = low + (high - low) * curve.of(similarities, chance(text, others))
    return made


def chance(first: Ints | np.int64, second: Ints) -> Floats:
    """Return standard normal numbers that depend only on the pairs (splitmix64, Box-Muller)."""
    pair = (np.asarray(first, np.uint64) << np.uint64(32)) ^ np.asarray(second, np.uint64)
    one, two = (_uniform(pair * np.uint64(2) + np.uint64(salt)) for salt in (0, 1))
    normal: Floats = np.sqrt(-2 * np.log(one)) * np.cos(2 * np.pi * two)
    return normal


def _uniform(keys: npt.NDArray[np.uint64]) -> Floats:
    """Hash keys to uniform numbers in (0, 1]."""
    with np.errstate(over="ignore"):
        z = keys + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    uniform: Floats = ((z >> np.uint64(11)).astype(np.float64) + 1) / 2.0**53
    return uniform
