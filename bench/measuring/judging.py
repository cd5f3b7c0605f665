"""Scores of an image: the CLIP score with its prompt, and the attributes that a judge net reads off the image."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from services.embedder.encoder import Encoder, encoder_folder
from shared.domain.types import Vector, vector_from
from shared.models.card_lookup import BUNDLED
from shared.models.quality import compare, look
from shared.models.scenes import ATTRIBUTES, Scene

T = TypeVar("T")
JUDGE = BUNDLED / "judge"
BATCH = 32
LOOKS = {"saturation": "saturation", "contrast": "contrast", "edges": "sharpness"}
"""Name in the figures → name in `shared.models.quality.Measures`."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One image's CLIP score (cosine with its prompt), and attribute → whether the image shows it (if judged)."""

    clip: float
    right: Mapping[str, bool] = field(default_factory=dict)


def open_encoder(name: str) -> Encoder:
    """Open the named encoder; ModelError if it is missing."""
    return Encoder(encoder_folder(name))


def judge_pictures(
    pictures: Mapping[int, bytes],
    prompts: Sequence[str],
    scenes: Sequence[Scene],
    encoder: Encoder,
    judge_folder: Path = JUDGE,
) -> dict[int, Verdict]:
    """Return a verdict for every PNG under the same key: `pictures[i]` was generated for `prompts[i]` and shows
    `scenes[i]`.

    Without a judge net in `judge_folder` no attribute is judged.
    """
    indices = sorted(pictures)
    texts = dict(zip(indices, _vectors(encoder, [prompts[index] for index in indices]), strict=True))
    clips: dict[int, float] = {}
    for some in _batches(indices):
        for index, embedded in zip(some, encoder.images([pictures[index] for index in some]), strict=True):
            clips[index] = float(vector_from(embedded.vector) @ texts[index])
    right = _judged(pictures, scenes, judge_folder) if (judge_folder / "model.safetensors").is_file() else {}
    return {index: Verdict(clips[index], right.get(index, {})) for index in indices}


def _batches(items: Sequence[T]) -> list[Sequence[T]]:
    return [items[start : start + BATCH] for start in range(0, len(items), BATCH)]


def _vectors(encoder: Encoder, texts: Sequence[str]) -> list[Vector]:
    return [vector_from(one.vector) for some in _batches(texts) for one in encoder.texts(some)]


def _judged(pictures: Mapping[int, bytes], scenes: Sequence[Scene], folder: Path) -> dict[int, dict[str, bool]]:
    from services.trainer.judging.classifier import load_judge

    judge, right = load_judge(folder), {}
    pixels = {index: pixels_of(data) for index, data in pictures.items()}
    by_shape = sorted(pixels, key=lambda index: pixels[index].shape)
    for _, same in groupby(by_shape, key=lambda index: pixels[index].shape):
        for some in _batches(list(same)):
            found = judge(np.stack([pixels[index] for index in some]))
            for place, index in enumerate(some):
                right[index] = {name: found[name][place] == str(getattr(scenes[index], name)) for name in ATTRIBUTES}
    return right


def pixels_of(data: bytes) -> npt.NDArray[np.uint8]:
    """Return the pixels of a PNG or JPEG, (height, width, 3), RGB."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def look_against(indices: Iterable[int], own: Mapping[int, bytes], noise: Mapping[int, bytes]) -> dict[str, float]:
    """Compare the PNGs `own` with those of `noise` at the same indices by LOOKS, which neither CLIP nor the judge net
    measures.

    Return the ratios of the means, and the share of images with less contrast than their counterpart."""
    both = [index for index in indices if index in own and index in noise]
    if not both:
        return {"pictures": 0}
    ours, theirs = ([look(pixels_of(pictures[index])) for index in both] for pictures in (own, noise))
    quality = compare(ours, theirs)
    ratios = {name: measured.value for name, field in LOOKS.items() if (measured := getattr(quality, field))}
    paler = fmean((one.contrast or 0.0) < (other.contrast or 0.0) for one, other in zip(ours, theirs, strict=True))
    return {"pictures": len(both), **ratios, "less_contrast": paler}


def accuracy(verdicts: Iterable[Verdict]) -> dict[str, float]:
    """Return the share of judged images with each attribute right, and with `all` right; empty if none was judged."""
    judged = [verdict.right for verdict in verdicts if verdict.right]
    if not judged:
        return {}
    shares = {name: sum(right[name] for right in judged) / len(judged) for name in ATTRIBUTES}
    return {**shares, "all": sum(all(right.values()) for right in judged) / len(judged)}
