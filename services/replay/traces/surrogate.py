"""What stands for the similarity of a prompt to a finished picture where there are no pictures: `modm (surrogate)`.

MoDM finds a picture by the cosine of the prompt's embedding and the picture's own (MoDM §3.2, eq. 1). Pictures of the
bundled pair of models say how that cosine depends on the similarity of the two prompts: from that of unrelated prompts
(share 0) to that of a prompt with its own picture (share 1) along a curve, and around it by chance. The curve's shares
and spreads are measured (bench/picture_similarity.py), the two ends are the encoder's: for MoDM's thresholds, which are
cosines of CLIP ViT-L/14, they are MODM_ENDS.
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
"""Cosines of CLIP ViT-L/14. The upper one is MoDM's mean CLIP score of pictures with their own prompts (Table 2:
28.55); the lower one is not in the paper, and is set so that the infinite cache of sd_trace_100k hits as often as MoDM
says of DiffusionDB with 100,000 pictures, 92.8 % (§7.1)."""
BYTES_PER_PIXEL = 1.4e6 / 1024**2
"""Of a stored picture: 1.4 MB at 1024×1024 (MoDM §3.1)."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Curve:
    """Similarity of two prompts → share of the way from unrelated (0) to one's own picture (1), and its spread."""

    similarity: tuple[float, ...]
    """Rising."""
    share: tuple[float, ...]
    spread: tuple[float, ...]
    """Standard deviation around it."""

    def of(self, similarities: Floats, chance: Floats) -> Floats:
        """chance: standard normal."""
        mean = np.interp(similarities, self.similarity, self.share)
        made: Floats = mean + chance * np.interp(similarities, self.similarity, self.spread)
        return made


def read_curve(path: Path = FILE) -> tuple[Curve, dict[str, Any]]:
    """The measured curve, and all that was measured."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return Curve(tuple(found["similarity"]), tuple(found["share"]), tuple(found["spread"])), found


@dataclass(frozen=True)
class PictureLoad:
    """What a policy that looks for pictures is offered: lists in order of the surrogate, and MoDM's table for it."""

    curve: Curve
    ends: tuple[float, float]
    """Cosine of text and picture: of unrelated ones, of one's own."""
    text_of: Ints
    neighbours: Neighbours
    """By the surrogate's cosine."""
    text_floor: float
    """Below it no prompt is similar enough for its picture to be looked at."""
    table: KTable = MODM

    def best(self, request: int, near: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
        """(request, surrogate cosine) of these (request, similarity of prompts), the best first."""
        others = np.array([other for other, _ in near], np.int64)
        cosines = np.array([cosine for _, cosine in near])
        made = cosines_of(self.curve, self.ends, self.text_of[request], others, cosines)
        order = np.argsort(-made, kind="stable")
        order = order[made[order] > self.table.lowest_similarity]
        return list(zip(others[order].tolist(), made[order].tolist(), strict=True))


def picture_load(curve: Curve, ends: tuple[float, float], text_of: Ints, near: Neighbours) -> PictureLoad:
    """From lists by prompts (the more below the latents' threshold they reach, the better) to lists by pictures."""
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
    """Of prompts `text` (rows of texts) with the pictures of the requests `others`; the same pair always the same."""
    low, high = ends
    made: Floats = low + (high - low) * curve.of(similarities, chance(text, others))
    return made


def chance(first: Ints | np.int64, second: Ints) -> Floats:
    """Standard normal numbers that depend on nothing but the two (splitmix64, Box-Muller)."""
    pair = (np.asarray(first, np.uint64) << np.uint64(32)) ^ np.asarray(second, np.uint64)
    one, two = (_uniform(pair * np.uint64(2) + np.uint64(salt)) for salt in (0, 1))
    normal: Floats = np.sqrt(-2 * np.log(one)) * np.cos(2 * np.pi * two)
    return normal


def _uniform(keys: npt.NDArray[np.uint64]) -> Floats:
    """In (0, 1]."""
    with np.errstate(over="ignore"):
        z = keys + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    uniform: Floats = ((z >> np.uint64(11)).astype(np.float64) + 1) / 2.0**53
    return uniform
