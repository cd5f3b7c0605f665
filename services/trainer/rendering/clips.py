"""Renderer of moving scenes: the objects' boxes at each frame, over a background that stays or drifts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from services.trainer.rendering.backgrounds import VARIANTS, background
from services.trainer.rendering.renderer import HEIGHTS, LATTICE, Box, Pixels, Renderer, places, side_of
from shared.models.scenes import MovingScene

FRAMES = 16
"""Frames of a training clip."""
HOPS = 2
HOP_PX = 16
_SIDES = {1: (20, 48), 2: (16, 28)}
"""Smallest and largest side of what grows or shrinks, alone and in a group."""


@dataclass(frozen=True, slots=True)
class Clip:
    """A rendered moving scene: `pixels` (F, height, width, 3) uint8, `masks` (F, height, width) of all its objects,
    and the objects' boxes of each frame."""

    pixels: Pixels
    masks: npt.NDArray[np.bool_]
    boxes: tuple[tuple[Box, ...], ...]


def render_clip(
    renderer: Renderer,
    moving: MovingScene,
    width: int = 64,
    height: int = 64,
    layout: int = 0,
    frames: int = FRAMES,
    only: Sequence[int] | None = None,
) -> Clip:
    """Render a moving scene of `frames` frames, or those of them that `only` lists.

    A background that drifts moves by half the image in all, `LATTICE` pixels at a time."""
    scene = moving.scene
    found = clip_boxes(moving, width, height, layout, frames)
    wide = width // 2 if moving.background_motion == "drift" else 0
    paint = background(scene.background, scene.light, layout % VARIANTS, width + wide, height)
    listed, pictures = range(frames) if only is None else only, []
    for frame in listed:
        at = _on_lattice(wide * frame / max(frames - 1, 1))
        pictures.append(renderer.compose(scene, paint[:, at : at + width], found[frame]))
    return Clip(
        np.stack([one.pixels for one in pictures]),
        np.stack([one.mask for one in pictures]),
        tuple(found[frame] for frame in listed),
    )


def clip_boxes(
    moving: MovingScene, width: int, height: int, layout: int = 0, frames: int = FRAMES
) -> tuple[tuple[Box, ...], ...]:
    """Return the boxes of the objects in each frame; what moves crosses all the room that it has."""
    scene, ground = moving.scene, HEIGHTS[layout // VARIANTS % len(HEIGHTS)]
    rest = places(scene, side_of(scene), width, height, ground)
    right = width - max(box[2] for box in rest)
    left, up = min(box[0] for box in rest), min(box[1] for box in rest)
    found = []
    for frame in range(frames):
        done = frame / max(frames - 1, 1)
        match moving.motion:
            case "left":
                boxes = _moved(rest, right - (left + right) * done, 0)
            case "right":
                boxes = _moved(rest, (left + right) * done - left, 0)
            case "up":
                boxes = _moved(rest, 0, -up * done)
            case "down":
                boxes = _moved(rest, 0, -up * (1 - done))
            case "hop":
                boxes = _moved(rest, 0, -min(HOP_PX, up) * abs(math.sin(HOPS * math.pi * done)))
            case "grow" | "shrink":
                least, most = _SIDES[min(scene.count, 2)]
                share = done if moving.motion == "grow" else 1 - done
                boxes = places(replace(scene, position="centre"), _on_lattice(least + (most - least) * share), width,
                               height, ground)  # fmt: skip
            case _:
                boxes = rest
        found.append(boxes)
    return tuple(found)


def _moved(boxes: tuple[Box, ...], dx: float, dy: float) -> tuple[Box, ...]:
    x, y = _on_lattice(dx), _on_lattice(dy)
    return tuple((x0 + x, y0 + y, x1 + x, y1 + y) for x0, y0, x1, y1 in boxes)


def _on_lattice(pixels: float) -> int:
    return round(pixels / LATTICE) * LATTICE
