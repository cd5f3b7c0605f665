"""Judgement of a segmenter: overlap with the true masks of held-out scenes, on pixels and on latent cells."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from diffusers import AutoencoderTiny
from transformers import CLIPSegForImageSegmentation

from services.trainer.export import through
from services.trainer.judging.motion import moving_scenes
from services.trainer.judging.scenes import balanced_scenes
from services.trainer.rendering.clips import FRAMES, render_clip
from services.trainer.rendering.renderer import LATTICE, LAYOUTS, Pixels, Renderer
from services.trainer.segmentation.architecture import logits_of
from services.trainer.segmentation.examples import Mask, absent_phrase
from services.trainer.segmentation.phrases import background_phrase, object_phrase
from services.trainer.training import runs
from services.trainer.words import Words
from shared.domain.latent_cells import both_masks, on_cells
from shared.models.scenes import MovingScene

SEED = 700
"""Seed of the judged scenes and of their phrases."""
LEAST = 0.5
"""Probability from which a pixel belongs to a phrase."""
SMALL_PX = 24
"""Largest side of a small object; sides of objects that grow or shrink are measured per frame."""
LOOKS = 4
"""Frames per moving scene, evenly spaced."""
EMPTY = 0.01
"""Largest share of an image that the mask of a phrase may cover that names something absent."""
BATCH = 32
BOUNDS = {"small": 0.75, "medium": 0.85, "large": 0.85}
"""Least mean overlap by the objects' size."""


@dataclass(frozen=True, slots=True)
class Case:
    """One judged image with its phrases: object, background, and one that names nothing in the image."""

    pixels: Pixels
    mask: Mask
    phrases: tuple[str, str, str]
    size: str
    kind: str


def cases(renderer: Renderer, count: int) -> Iterator[Case]:
    """Yield `count` stills, and `LOOKS` frames of each of `count` / `LOOKS` moving scenes, all of combinations never
    trained on."""
    rng = random.Random(SEED)
    for number, scene in enumerate(balanced_scenes(count, SEED)):
        picture = renderer.render(scene, layout=number % LAYOUTS)
        yield _case(picture.pixels, picture.mask, MovingScene(scene), scene.size, "still", rng)
    at = [round(frame) for frame in np.linspace(0, FRAMES - 1, LOOKS)]
    for number, moving in enumerate(moving_scenes(max(count // LOOKS, 1), SEED)):
        clip = render_clip(renderer, moving, layout=number % LAYOUTS, only=at)
        for pixels, mask, boxes in zip(clip.pixels, clip.masks, clip.boxes, strict=True):
            side, size = boxes[0][2] - boxes[0][0], moving.scene.size
            if moving.motion in ("grow", "shrink"):
                size = "small" if side <= SMALL_PX else "medium"
            yield _case(pixels, mask, moving, size, "moving", rng)


def judge_segmenter(
    model: CLIPSegForImageSegmentation, words: Words, renderer: Renderer, vae: AutoencoderTiny, count: int = 256
) -> dict[str, Any]:
    """Return the mean overlap (intersection over union) by size and kind, plain and after the autoencoder.

    `absent` is the share of absent phrases whose mask covers at most `EMPTY` of the image."""
    found = list(cases(renderer, count))
    passed = through(vae)
    scores: dict[str, list[float]] = defaultdict(list)
    for start in range(0, len(found), BATCH):
        some = found[start : start + BATCH]
        pixels = np.stack([case.pixels for case in some])
        for name, shown in (("plain", pixels), ("round_trip", passed(pixels))):
            shares = probabilities(model, words, shown, [phrase for case in some for phrase in case.phrases])
            objects, places = both_masks(shares[:, 0], shares[:, 1], LEAST)
            absent = (shares[:, 2] >= LEAST).mean(axis=(1, 2))
            for row, case in enumerate(some):
                own, place, truth = objects[row : row + 1], places[row : row + 1], case.mask[None]
                for grid, one, other, true in (
                    ("pixels", own, place, truth),
                    ("cells", on_cells(own, LATTICE), on_cells(place, LATTICE), on_cells(truth, LATTICE)),
                ):
                    scores[f"{name}/{grid}/{case.size}"].append(overlap(one, true))
                    scores[f"{name}/{grid}/{case.kind}"].append(overlap(one, true))
                    scores[f"{name}/{grid}/background"].append(overlap(other, ~true))
                scores[f"{name}/absent"].append(float(absent[row] <= EMPTY))
    summary: dict[str, Any] = {name: round(float(np.mean(values)), 4) for name, values in sorted(scores.items())}
    held = all(
        summary[f"round_trip/{grid}/{size}"] >= least for size, least in BOUNDS.items() for grid in ("pixels", "cells")
    )
    return {"images": len(found), "bounds_hold": held, **summary}


def probabilities(
    model: CLIPSegForImageSegmentation, words: Words, pixels: Pixels, phrases: Sequence[str]
) -> npt.NDArray[np.float32]:
    """Return probabilities (N, phrases per image, side, side) for images (N, side, side, 3)."""
    with torch.inference_mode():
        each = len(phrases) // len(pixels)
        logits = logits_of(model, runs.to_tensor(pixels), words.batch(phrases), each)
        found: npt.NDArray[np.float32] = logits.sigmoid().numpy()
    return found


def overlap(found: Mask, true: Mask) -> float:
    """Return the intersection over the union; 1 for two empty masks."""
    union = int((found | true).sum())
    return int((found & true).sum()) / union if union else 1.0


def _case(pixels: Pixels, mask: Mask, moving: MovingScene, size: str, kind: str, rng: random.Random) -> Case:
    phrases = (object_phrase(moving, rng), background_phrase(moving, rng), absent_phrase(moving, rng))
    return Case(pixels, mask, phrases, size, kind)
