"""Judge of the bundled models' images: an object is right if templates and classifier both accept it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.trainer.judging.classifier import Reader
from services.trainer.judging.confidence import JudgeThresholds, Pass, Pictures
from services.trainer.judging.scenes import balanced_scenes
from services.trainer.judging.templates import match
from services.trainer.rendering.renderer import SIZES, Renderer
from shared.models.scenes import ATTRIBUTES, Scene
from shared.runtime.progress import Advance

SEED = 100
"""Seed of the judged scenes."""
BATCH = 16

Draw = Callable[[Sequence[Scene], tuple[int, int]], tuple[Pictures, float]]
"""Generates scenes at one size: images (B, height, width, 3) uint8, and the seconds spent."""


@dataclass(frozen=True)
class Verdict:
    """Verdict on one image: whether the classifier sees each attribute, and the object by each judge."""

    scene: Scene
    size: tuple[int, int]
    net: dict[str, bool]
    by_net: bool
    """The classifier names the object with a probability above the threshold."""
    by_template: bool
    """The object's rendering fits best, with a margin above the threshold."""
    nearest: bool
    """Both judges rank the object first, at any confidence."""


def judged(
    pictures: Pictures, scenes: Sequence[Scene], renderer: Renderer, reader: Reader, bar: JudgeThresholds
) -> list[Verdict]:
    """Return a verdict on each image (B, height, width, 3) of `scenes`."""
    read = reader(pictures)
    size = (pictures.shape[2], pictures.shape[1])
    found = []
    for i, (picture, scene) in enumerate(zip(pictures, scenes, strict=True)):
        net = {name: read.words[name][i] == str(getattr(scene, name)) for name in ATTRIBUTES}
        fits = match(picture, scene, renderer)
        sure = net["object"] and read.certainty[i] >= bar.certainty
        nearest = net["object"] and fits.name == scene.object
        found.append(Verdict(scene, size, net, sure, bar.template(fits, scene), nearest))
    return found


def summary(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Return the share of right images by attribute.

    An object is right if both judges accept it. Beside it stand each judge's own share, and the share of images whose
    object both judges rank first (`object_nearest`)."""
    return {
        **{name: float(np.mean([v.net[name] for v in verdicts])) for name in ATTRIBUTES},
        "object": float(np.mean([v.by_net and v.by_template for v in verdicts])),
        "object_by_net": float(np.mean([v.by_net for v in verdicts])),
        "object_by_template": float(np.mean([v.by_template for v in verdicts])),
        "object_nearest": float(np.mean([v.nearest for v in verdicts])),
    }


def judge_model(
    draw: Draw,
    renderer: Renderer,
    reader: Reader,
    bar: JudgeThresholds,
    count: int,
    sizes: Sequence[tuple[int, int]] = SIZES,
    begin: Callable[[int], Advance] = lambda total: lambda count: None,
) -> dict[str, Any]:
    """Judge `count` different scenes in equal blocks of one size each; return scores and seconds per image in batches.

    `begin` takes the number of images and returns a function that counts them.

    `by_size` compares the sizes on the scenes of the first block, generated at every size. With other scenes at each
    size, the shares would differ by .05 and more by chance alone.
    """
    scenes = balanced_scenes(count, SEED)
    each = count // len(sizes)
    blocks = [scenes[i * each : (i + 1) * each if i + 1 < len(sizes) else count] for i in range(len(sizes))]
    seconds: list[float] = []
    drawn = count + (len(sizes) - 1) * len(blocks[0])
    advance = begin(drawn)

    def verdicts(part: Sequence[Scene], size: tuple[int, int]) -> list[Verdict]:
        found: list[Verdict] = []
        for start in range(0, len(part), BATCH):
            some = part[start : start + BATCH]
            pictures, took = draw(some, size)
            seconds.append(took)
            found += judged(pictures, some, renderer, reader, bar)
            advance(len(some))
        return found

    own = [verdicts(block, size) for block, size in zip(blocks, sizes, strict=True)]
    same = [own[0], *(verdicts(blocks[0], size) for size in sizes[1:])]
    return {
        **summary([verdict for block in own for verdict in block]),
        "pictures": count,
        "seconds_per_picture_batched": sum(seconds) / drawn,
        "by_size": {f"{w}x{h}": summary(found) for (w, h), found in zip(sizes, same, strict=True)},
    }


def real_pictures(renderer: Renderer, passed: Pass | None = None) -> Draw:
    """Return a `Draw` of real renders, which tests the judge itself. `passed`, if given, encodes and decodes the
    renders."""

    def draw(scenes: Sequence[Scene], size: tuple[int, int]) -> tuple[Pictures, float]:
        began = time.monotonic()
        pictures = np.stack([renderer.render(scene, *size, layout=i).pixels for i, scene in enumerate(scenes)])
        pictures = passed(pictures) if passed else pictures
        return pictures, time.monotonic() - began

    return draw
