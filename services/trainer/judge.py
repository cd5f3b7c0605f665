"""Says what the bundled models' pictures really show, by templates and by a classifier, and keeps the stricter."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from services.trainer.backgrounds import VARIANTS
from services.trainer.judge_net import Judge
from services.trainer.renderer import HEIGHTS, LATTICE, SIZES, Pixels, Renderer, boxes
from shared.scenes import ATTRIBUTES, VALUES, Scene, all_held_out, held_out, random_scene

Draw = Callable[[Sequence[Scene], tuple[int, int]], tuple[npt.NDArray[np.uint8], float]]
"""Draws scenes at one size: pictures (B, height, width, 3) uint8, and the seconds it took."""


@dataclass(frozen=True)
class Verdict:
    """One picture: whether each attribute is right by the classifier, and the object by the templates."""

    scene: Scene
    size: tuple[int, int]
    net: dict[str, bool]
    template: bool


def match_object(picture: Pixels, scene: Scene, renderer: Renderer) -> str:
    """The object whose rendering fits a picture best, everything else being as `scene` says.

    The background's variant is chosen outside the objects' boxes; inside, every object is tried at both heights
    and the highest correlation wins.
    """
    height, width = picture.shape[:2]
    inside = np.zeros((height, width), dtype=np.bool_)
    for layout in range(0, len(HEIGHTS) * VARIANTS, VARIANTS):
        for x0, y0, x1, y1 in boxes(scene, width, height, layout):
            inside[y0:y1, x0:x1] = True
    found = picture.astype(np.float32)
    variants = [renderer.render(scene, width, height, v).pixels.astype(np.float32) for v in range(VARIANTS)]
    variant = int(np.argmin([np.square(found - v)[~inside].sum() for v in variants]))
    best, name = -2.0, ""
    for layout in range(variant, len(HEIGHTS) * VARIANTS, VARIANTS):
        area = np.zeros((height, width), dtype=np.bool_)
        for x0, y0, x1, y1 in boxes(scene, width, height, layout):
            area[y0:y1, max(0, x0 - LATTICE // 2) : x1 + LATTICE // 2] = True
        for candidate in VALUES["object"]:
            template = renderer.render(replace(scene, object=str(candidate)), width, height, layout).pixels[area]
            score = _correlation(found[area], template.astype(np.float32))
            if score > best:
                best, name = score, str(candidate)
    return name


def _correlation(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    a, b = a - a.mean(axis=0), b - b.mean(axis=0)
    return float((a * b).sum() / (np.linalg.norm(a) * np.linalg.norm(b) + 1e-6))


def judged(pictures: npt.NDArray[np.uint8], scenes: Sequence[Scene], renderer: Renderer, judge: Judge) -> list[Verdict]:
    """A verdict on each picture (B, height, width, 3) of `scenes`."""
    said = judge(pictures)
    size = (pictures.shape[2], pictures.shape[1])
    return [
        Verdict(
            scene,
            size,
            {name: said[name][i] == str(getattr(scene, name)) for name in ATTRIBUTES},
            match_object(picture, scene, renderer) == scene.object,
        )
        for i, (picture, scene) in enumerate(zip(pictures, scenes, strict=True))
    ]


def summary(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """The share of right pictures by attribute; `object` is the stricter of the two judges, both are reported."""
    found = {name: float(np.mean([v.net[name] for v in verdicts])) for name in ATTRIBUTES}
    net, template = found["object"], float(np.mean([v.template for v in verdicts]))
    return {**found, "object": min(net, template), "object_by_net": net, "object_by_template": template}


def judge_model(
    draw: Draw, renderer: Renderer, judge: Judge, count: int, sizes: Sequence[tuple[int, int]] = SIZES
) -> dict[str, Any]:
    """Judge `count` held-out prompts: the same scenes at each of `sizes`, so that the sizes can be compared, each said
    in another wording; scores overall and by size, and seconds per picture in batches of 16."""
    verdicts: list[Verdict] = []
    seconds = 0.0
    scenes = balanced_scenes(count // len(sizes), seed=100)
    for size in sizes:
        for start in range(0, len(scenes), 16):
            part = scenes[start : start + 16]
            pictures, took = draw(part, size)
            seconds += took
            verdicts += judged(pictures, part, renderer, judge)
    by_size = {f"{w}x{h}": summary([v for v in verdicts if v.size == (w, h)]) for w, h in sizes}
    return {
        **summary(verdicts),
        "pictures": len(verdicts),
        "seconds_per_picture_batched": seconds / max(len(verdicts), 1),
        "by_size": by_size,
    }


def real_pictures(
    renderer: Renderer, passed: Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.uint8]] | None = None
) -> Draw:
    """Renders instead of drawings, to judge the judge; `passed` may send them through an autoencoder."""

    def draw(scenes: Sequence[Scene], size: tuple[int, int]) -> tuple[npt.NDArray[np.uint8], float]:
        began = time.monotonic()
        pictures = np.stack([renderer.render(scene, *size, layout=i).pixels for i, scene in enumerate(scenes)])
        return passed(pictures) if passed else pictures, time.monotonic() - began

    return draw


def balanced_scenes(count: int, seed: int) -> list[Scene]:
    """Held-out scenes in which every object, background and style comes up about equally often; the rest is chance."""
    rng = random.Random(seed)
    triples = all_held_out()
    names = list(VALUES["object"])
    rng.shuffle(names)
    found: list[Scene] = []
    seen: dict[tuple[str, str], int] = {}
    for i in range(count):
        name = names[i % len(names)]
        options = [t for t in triples if t[0] == name]
        rng.shuffle(options)
        _, place, style = min(options, key=lambda t: seen.get(("b", t[1]), 0) + seen.get(("s", t[2]), 0))
        seen["b", place] = seen.get(("b", place), 0) + 1
        seen["s", style] = seen.get(("s", style), 0) + 1
        scene = replace(random_scene(rng), object=str(name), background=place, style=style)
        assert held_out(scene)
        found.append(scene)
    return found
