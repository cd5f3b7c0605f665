"""Renderer of scenes: a painted background, one to three sprites on the autoencoder's lattice, and a style over all."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from services.trainer.rendering.backgrounds import VARIANTS, background
from services.trainer.rendering.sprites import Sprite, load_sprites
from shared.models.scenes import Scene

SIZES = ((64, 64), (96, 64), (64, 96), (96, 96))
"""Training sizes (width, height) of the bundled models."""
LATTICE = 4
"""Sprites' sides and places are multiples of the autoencoder's stride, so that a sprite's latents repeat."""
HEIGHTS = (4, 8)
"""Distances of the objects from the bottom edge, pixels."""
LAYOUTS = len(HEIGHTS) * VARIANTS
"""Number of different renders of one scene at one size."""

_SIDES = {1: {"small": 24, "medium": 36, "large": 48}, 2: {"small": 20, "medium": 24, "large": 28}}
_HUES = {
    "red": ((70, 0, 8), (226, 30, 40), (255, 190, 180)),
    "yellow": ((96, 62, 0), (246, 200, 20), (255, 250, 190)),
    "green": ((0, 50, 14), (36, 170, 60), (200, 250, 190)),
    "blue": ((4, 14, 88), (34, 96, 235), (190, 222, 255)),
    "purple": ((44, 0, 66), (150, 50, 205), (236, 200, 255)),
    "white": ((70, 76, 96), (196, 200, 210), (255, 255, 255)),
}
_SPRITE_LIGHT = {"day": (1.0, 1.0, 1.0), "sunset": (1.0, 0.86, 0.78), "night": (0.72, 0.75, 0.90)}

Pixels = npt.NDArray[np.uint8]
Box = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Picture:
    """A rendered scene: `pixels` (height, width, 3) uint8, `masks` (count, height, width) bool, boxes x0 y0 x1 y1."""

    pixels: Pixels
    masks: npt.NDArray[np.bool_]
    boxes: tuple[Box, ...]

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """Pixels of any of the objects, (height, width)."""
        found: npt.NDArray[np.bool_] = np.any(self.masks, axis=0)
        return found


class Renderer:
    """Renderer of scenes from sprites; the same scene, size and layout give the same pixels."""

    def __init__(self, folder: Path) -> None:
        self._sprites = load_sprites(folder)
        self._coloured = lru_cache(maxsize=4096)(self._coloured_sprite)

    def render(self, scene: Scene, width: int = 64, height: int = 64, layout: int = 0) -> Picture:
        """Render a scene; `layout` (mod `LAYOUTS`) selects the background's variant and the ground's height."""
        paint = background(scene.background, scene.light, layout % VARIANTS, width, height)
        return self.compose(scene, paint, boxes(scene, width, height, layout))

    def compose(self, scene: Scene, paint: npt.NDArray[np.float32], found: tuple[Box, ...]) -> Picture:
        """Render a scene's objects into the boxes `found`, over a background (height, width, 3) in 0…1."""
        paint = paint.copy()
        masks = np.zeros((len(found), *paint.shape[:2]), dtype=np.bool_)
        for mask, (x0, y0, x1, y1) in zip(masks, found, strict=True):
            sprite = self._coloured(scene.object, scene.colour, scene.light, x1 - x0)
            alpha = sprite[..., 3:]
            paint[y0:y1, x0:x1] = paint[y0:y1, x0:x1] * (1 - alpha) + sprite[..., :3] * alpha
            mask[y0:y1, x0:x1] = alpha[..., 0] > 0.5
        styled = _STYLES[scene.style](paint)
        return Picture((styled.clip(0, 1) * 255).round().astype(np.uint8), masks, found)

    def _coloured_sprite(self, name: str, colour: str, light: str, side: int) -> npt.NDArray[np.float32]:
        small = _resized(self._sprites[name], side)
        if colour != "natural":
            small[..., :3] = _recoloured(small[..., :3], colour)
        small[..., :3] *= np.asarray(_SPRITE_LIGHT[light], dtype=np.float32)
        return small


def boxes(scene: Scene, width: int, height: int, layout: int = 0) -> tuple[Box, ...]:
    """Return the boxes of a scene's objects: one alone, two side by side, or a third above and between the two."""
    return places(scene, side_of(scene), width, height, HEIGHTS[layout // VARIANTS % len(HEIGHTS)])


def side_of(scene: Scene) -> int:
    """Return the side of each of a scene's objects in pixels."""
    return _SIDES[min(scene.count, 2)][scene.size]


def places(scene: Scene, side: int, width: int, height: int, ground: int) -> tuple[Box, ...]:
    """Return the boxes of a scene's objects of one `side`, `ground` pixels above the bottom edge."""
    step = side if scene.count == 1 else side - LATTICE
    across = side if scene.count == 1 else side + step
    margin = LATTICE if width - across >= 4 * LATTICE else 0
    left = {
        "left": margin,
        "centre": (width - across) // 2 // LATTICE * LATTICE,
        "right": width - across - margin,
    }[scene.position]
    base = height - ground
    corners = [(left, base - side), (left + step, base - side)][: scene.count]
    if scene.count == 3:
        corners.insert(0, (left + step // 2 // LATTICE * LATTICE, base - side - step))
    return tuple((x, y, x + side, y + side) for x, y in corners)


def _resized(sprite: Sprite, side: int) -> npt.NDArray[np.float32]:
    premultiplied = sprite.astype(np.float32) / 255
    premultiplied[..., :3] *= premultiplied[..., 3:]
    bands = [
        np.asarray(Image.fromarray(premultiplied[..., i]).resize((side, side), Image.Resampling.BOX)) for i in range(4)
    ]
    small = np.stack(bands, axis=-1)
    small[..., :3] /= np.maximum(small[..., 3:], 1e-3)
    return small


def _recoloured(rgb: npt.NDArray[np.float32], colour: str) -> npt.NDArray[np.float32]:
    luminance = rgb @ np.array([0.30, 0.59, 0.11], dtype=np.float32)
    ramp = np.asarray(_HUES[colour], dtype=np.float32) / 255
    channels = [np.interp(luminance, (0.05, 0.55, 1.0), ramp[:, i]) for i in range(3)]
    return np.stack(channels, axis=-1).astype(np.float32)


def _plain(paint: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return paint


def _pixel(paint: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    h, w, _ = paint.shape
    coarse = paint.reshape(h // 2, 2, w // 2, 2, 3).mean(axis=(1, 3))
    coarse = (coarse * 7).round() / 7  # eight shades per channel
    return coarse.repeat(2, axis=0).repeat(2, axis=1)


def _sketch(paint: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    grey = paint.mean(axis=-1)
    dx = np.abs(np.diff(grey, axis=1, prepend=grey[:, :1]))
    dy = np.abs(np.diff(grey, axis=0, prepend=grey[:1]))
    line = np.clip((dx + dy) * 3.0 - 0.10, 0, 1)[..., None]
    paper = 0.45 * paint + 0.52
    return paper * (1 - 0.85 * line)


def _watercolour(paint: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    h, w, _ = paint.shape
    padded = np.pad(paint, ((1, 1), (1, 1), (0, 0)), mode="edge")
    soft = (padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:] + 2 * paint) / 6
    wash = 0.16 + 0.84 * soft
    edge = _paper_edge(h, w)
    return wash * edge + 0.97 * (1 - edge)


@lru_cache(maxsize=16)
def _paper_edge(height: int, width: int) -> npt.NDArray[np.float32]:
    y = np.minimum(np.arange(height), np.arange(height)[::-1])[:, None]
    x = np.minimum(np.arange(width), np.arange(width)[::-1])[None, :]
    wobble = 1.2 * np.sin(np.arange(width) * 0.6)[None, :] + 1.2 * np.sin(np.arange(height) * 0.5)[:, None]
    return np.clip((np.minimum(x, y) + wobble) / 5, 0, 1).astype(np.float32)[..., None]


_STYLES = {"3d": _plain, "pixel": _pixel, "sketch": _sketch, "watercolour": _watercolour}
