"""Rendered images with phrases and the true mask of each: of objects, of backgrounds, and of what is not there."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from services.trainer.judging.confidence import Pass
from services.trainer.rendering.clips import FRAMES, render_clip
from services.trainer.rendering.renderer import LAYOUTS, SIZES, Pixels, Renderer
from services.trainer.segmentation.phrases import background_phrase, object_phrase
from services.trainer.training import runs
from shared.models.scenes import VALUES, MovingScene, Scene, held_out, random_moving_scene, random_scene

Mask = npt.NDArray[np.bool_]
SIDE = 64
"""Side of the model's input in pixels."""
PHRASES = 3
"""Phrases per image: its object, its background, and a second object or something that is not there."""


@dataclass(frozen=True, slots=True)
class Example:
    """One image (height, width, 3) with `PHRASES` phrases and their true masks (PHRASES, height, width)."""

    pixels: Pixels
    phrases: tuple[str, ...]
    masks: Mask


def example(renderer: Renderer, rng: random.Random, size: tuple[int, int] = (SIDE, SIDE)) -> Example:
    """Return a random example outside the held-out combinations. Half are frames of moving scenes of 64×64; a third of
    the stills show a second kind of object."""
    if size == (SIDE, SIDE) and rng.random() < 0.5:
        moving = random_moving_scene(rng)
        clip = render_clip(renderer, moving, layout=rng.randrange(LAYOUTS), only=[rng.randrange(FRAMES)])
        return labelled(clip.pixels[0], moving, clip.masks[0], rng)
    scene = _trainable(rng)
    layout = rng.randrange(LAYOUTS)
    first = renderer.render(scene, *size, layout)
    mask, pixels = first.mask, first.pixels
    if rng.random() > 0.33:
        return labelled(pixels, MovingScene(scene), mask, rng)
    other = replace(_trainable(rng), background=scene.background, light=scene.light, style=scene.style)
    if other.object == scene.object or held_out(other):
        return labelled(pixels, MovingScene(scene), mask, rng)
    second = renderer.render(other, *size, layout)
    over = second.mask
    pixels = np.where(grown(over)[..., None], second.pixels, pixels)
    return labelled(pixels, MovingScene(scene), mask & ~grown(over), rng, (MovingScene(other), over))


def labelled(
    pixels: Pixels, moving: MovingScene, mask: Mask, rng: random.Random, second: tuple[MovingScene, Mask] | None = None
) -> Example:
    """Return the image with its phrases. `mask` covers the scene's objects; `second` is another scene's objects, which
    stand in front."""
    objects = mask | second[1] if second else mask
    if second:
        phrase, there = object_phrase(second[0], rng), second[1]
    else:
        phrase, there = absent_phrase(moving, rng), np.zeros_like(mask)
    phrases = (object_phrase(moving, rng), background_phrase(moving, rng), phrase)
    return Example(pixels, phrases, np.stack([mask, ~objects, there]))


def absent_phrase(moving: MovingScene, rng: random.Random) -> str:
    """Return a phrase of another object, or at times of another background, that the scene does not show."""
    kind = "object" if rng.random() < 0.6 else "background"
    shown = getattr(moving.scene, kind)
    other: dict[str, Any] = {kind: rng.choice([one for one in VALUES[kind] if one != shown])}
    changed = replace(moving, scene=replace(moving.scene, **other))
    return object_phrase(changed, rng) if kind == "object" else background_phrase(changed, rng)


def batch(
    renderer: Renderer, rng: random.Random, count: int, passed: Pass | None = None
) -> tuple[torch.Tensor, list[str], torch.Tensor]:
    """Return images (count, 3, SIDE, SIDE) in −1…1, phrases (count · PHRASES), masks (count, PHRASES, SIDE, SIDE).

    Some batches have another size, scaled to the input's; `passed` encodes and decodes some; some are blurred or
    noisy, for generated clips are less sharp than renders."""
    size = SIZES[0] if rng.random() < 0.9 else SIZES[1 + rng.randrange(3)]
    found = [example(renderer, rng, size) for _ in range(count)]
    pixels = np.stack([one.pixels for one in found])
    if passed is not None and rng.random() < 0.5:
        pixels = passed(pixels)
    inputs = runs.to_tensor(pixels)
    masks = torch.from_numpy(np.stack([one.masks for one in found])).float()
    if size != SIZES[0]:
        inputs = F.interpolate(inputs, (SIDE, SIDE), mode="bilinear", antialias=True)
        masks = F.interpolate(masks, (SIDE, SIDE), mode="area")
    if rng.random() < 0.25:
        inputs = F.avg_pool2d(F.pad(inputs, (1, 1, 1, 1), mode="replicate"), 3, 1)
    if rng.random() < 0.4:
        inputs = inputs + 0.1 * rng.random() * torch.randn_like(inputs)
    return inputs, [phrase for one in found for phrase in one.phrases], masks


def grown(mask: Mask) -> Mask:
    """Return the mask with every pixel that touches it: the sprites' soft edges."""
    padded = np.pad(mask, 1)
    h, w = mask.shape
    return np.logical_or.reduce([padded[y : y + h, x : x + w] for y in range(3) for x in range(3)])


def _trainable(rng: random.Random) -> Scene:
    while held_out(scene := random_scene(rng, 0.25)):
        pass
    return scene
