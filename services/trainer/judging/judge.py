"""Says what the bundled models' pictures really show: right is what templates and classifier both call right."""

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
"""Of the judged scenes."""
BATCH = 16

Draw = Callable[[Sequence[Scene], tuple[int, int]], tuple[Pictures, float]]
"""Draws scenes at one size: pictures (B, height, width, 3) uint8, and the seconds it took."""


@dataclass(frozen=True)
class Verdict:
    """One picture: whether each attribute is what the classifier sees, and the object by each judge."""

    scene: Scene
    size: tuple[int, int]
    net: dict[str, bool]
    by_net: bool
    """The classifier names the object, and is as sure of it as the bar asks."""
    by_template: bool
    """The object's rendering fits best, by as much as the bar asks."""
    nearest: bool
    """Both find the object the likeliest of all, however unsure they are."""


def judged(
    pictures: Pictures, scenes: Sequence[Scene], renderer: Renderer, reader: Reader, bar: JudgeThresholds
) -> list[Verdict]:
    """A verdict on each picture (B, height, width, 3) of `scenes`."""
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
    """The share of right pictures by attribute; of objects those that both judges call right, beside each judge's own
    share and that of pictures in which the object is merely the likeliest (`object_nearest`)."""
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
    """Judge `count` different scenes, in equal blocks one size each; scores, and seconds per picture in batches.

    begin: takes how many pictures will be drawn, and gives what counts them.

    `by_size` compares the sizes on the same scenes, those of the first block, which are drawn at every size: of other
    scenes at each, the shares would differ by .05 and more from chance alone.
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
    """Renders instead of drawings, to judge the judge; `passed` may send them through an autoencoder."""

    def draw(scenes: Sequence[Scene], size: tuple[int, int]) -> tuple[Pictures, float]:
        began = time.monotonic()
        pictures = np.stack([renderer.render(scene, *size, layout=i).pixels for i, scene in enumerate(scenes)])
        pictures = passed(pictures) if passed else pictures
        return pictures, time.monotonic() - began

    return draw
