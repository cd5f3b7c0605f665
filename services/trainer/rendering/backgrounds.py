"""The painted backgrounds of the scenes: ten places, three lights, a few variants each, at any size."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

VARIANTS = 4
_OVERSAMPLE = 4
_CLOUDS = (((0.22, 0.14), (0.70, 0.22)), ((0.15, 0.26), (0.55, 0.12)), ((0.40, 0.10), (0.85, 0.24)), ((0.30, 0.22),))
_SUN_X = (0.80, 0.25, 0.55, 0.85)
_STARS = (np.random.default_rng(7).random((14, 2)) * (1.0, 0.5)).tolist()

Colour = tuple[int, int, int]
Paint = npt.NDArray[np.float32]

_SKY: dict[str, tuple[Colour, Colour]] = {
    "day": ((78, 158, 235), (200, 232, 250)),
    "sunset": ((110, 70, 140), (250, 150, 90)),
    "night": ((10, 12, 40), (38, 44, 92)),
}
_SHADE: dict[str, tuple[float, float, float]] = {
    "day": (1.0, 1.0, 1.0),
    "sunset": (0.95, 0.72, 0.66),
    "night": (0.42, 0.45, 0.62),
}


class _Canvas:
    """A drawing in relative coordinates, with the light's tint on every ground colour."""

    def __init__(self, width: int, height: int, light: str, variant: int) -> None:
        self.light, self.variant = light, variant
        self.w, self.h = width * _OVERSAMPLE, height * _OVERSAMPLE
        self.unit = 64 * _OVERSAMPLE  # details have the same size in pixels at every image size
        self.picture = Image.new("RGB", (self.w, self.h))
        self.draw = ImageDraw.Draw(self.picture)

    def tint(self, colour: Colour) -> Colour:
        r, g, b = (round(c * s) for c, s in zip(colour, _SHADE[self.light], strict=True))
        return r, g, b

    def gradient(self, top: Colour, bottom: Colour, until: float = 1.0) -> None:
        ramp = np.linspace(0.0, 1.0, max(round(self.h * until), 1))[:, None]
        rows = np.asarray(top) * (1 - ramp) + np.asarray(bottom) * ramp
        block = np.repeat(rows[:, None, :], self.w, axis=1).round().astype(np.uint8)
        self.picture.paste(Image.fromarray(block), (0, 0))

    def sky(self, until: float = 0.7, clouds: bool = True) -> None:
        self.gradient(*_SKY[self.light], until)
        if self.light == "night":
            for x, y in _STARS:
                self.dot(x, y, 0.008, (235, 235, 255))
        sun = {"day": (255, 236, 130), "sunset": (255, 205, 110), "night": (240, 240, 225)}[self.light]
        self.dot(_SUN_X[self.variant], 0.40 if self.light == "sunset" else 0.15, 0.075, sun)
        if clouds and self.light != "night":
            for x, y in _CLOUDS[self.variant]:
                self.cloud(x, y, {"day": (250, 252, 255), "sunset": (250, 190, 160)}[self.light])

    def dot(self, x: float, y: float, radius: float, colour: Colour) -> None:
        r, cx, cy = radius * self.unit, x * self.w, y * self.h
        self.draw.ellipse((cx - r, cy - r, cx + r, cy + r), fill=colour)

    def cloud(self, x: float, y: float, colour: Colour) -> None:
        for dx, dy, r in ((-0.09, 0.01, 0.045), (0.0, -0.015, 0.065), (0.09, 0.01, 0.045)):
            cx, cy, size = x * self.w + dx * self.unit, y * self.h + dy * self.unit, r * self.unit
            self.draw.ellipse((cx - size * 1.3, cy - size, cx + size * 1.3, cy + size), fill=colour)

    def ground(self, top: float, colour: Colour, wave: float = 0.0, phase: float = 0.0) -> None:
        xs = np.linspace(0, 1, 33)
        ys = top + wave * np.sin(2 * np.pi * (xs * 1.1 + phase))
        line = [(float(x) * self.w, float(y) * self.h) for x, y in zip(xs, ys, strict=True)]
        self.draw.polygon([*line, (self.w, self.h), (0, self.h)], fill=self.tint(colour))

    def shape(self, points: list[tuple[float, float]], colour: Colour) -> None:
        self.draw.polygon([(x * self.w, y * self.h) for x, y in points], fill=self.tint(colour))

    def block(self, x0: float, y0: float, x1: float, y1: float, colour: Colour) -> None:
        self.draw.rectangle((x0 * self.w, y0 * self.h, x1 * self.w, y1 * self.h), fill=colour)


def _beach(c: _Canvas) -> None:
    c.sky(0.55)
    c.ground(0.50, (40, 130, 205))
    c.ground(0.58, (70, 170, 215))
    c.ground(0.66, (240, 214, 150), 0.012, 0.25 * c.variant)


def _desert(c: _Canvas) -> None:
    c.sky(0.6, clouds=False)
    c.ground(0.52, (226, 160, 84), 0.05, 0.25 * c.variant)
    c.ground(0.68, (205, 130, 62), 0.03, 0.25 * c.variant + 0.5)


def _snow(c: _Canvas) -> None:
    c.sky(0.6)
    c.ground(0.55, (205, 222, 244), 0.03, 0.25 * c.variant)
    c.ground(0.66, (244, 248, 255), 0.015, 0.25 * c.variant + 0.4)


def _meadow(c: _Canvas) -> None:
    c.sky(0.6)
    c.ground(0.56, (110, 190, 84), 0.03, 0.25 * c.variant)
    c.ground(0.66, (84, 165, 60))
    for i in range(9):
        petal = ((250, 240, 120), (250, 250, 250), (240, 130, 150))[i % 3]
        c.dot((i * 0.37 + 0.1 * c.variant) % 1.0, 0.72 + 0.24 * ((i * 0.53) % 1.0), 0.012, c.tint(petal))


def _mountains(c: _Canvas) -> None:
    c.sky(0.65)
    shift = 0.08 * c.variant
    for x in (0.02 + shift, 0.42 + shift, 0.82 + shift):
        c.shape([(x - 0.34, 0.68), (x, 0.26), (x + 0.34, 0.68)], (122, 120, 150))
        c.shape([(x - 0.09, 0.37), (x, 0.26), (x + 0.09, 0.37), (x, 0.40)], (240, 244, 250))
    c.ground(0.66, (96, 122, 88))


def _forest(c: _Canvas) -> None:
    c.sky(0.65, clouds=False)
    c.ground(0.55, (30, 84, 54))
    step, shift = 0.14 * c.unit / c.w, 0.035 * c.variant * c.unit / c.w
    for i in range(-1, int(1 / step) + 2):
        x, tall = i * step + shift, (0.36, 0.26, 0.32)[i % 3]
        c.shape([(x - 0.7 * step, 0.68), (x, tall), (x + 0.7 * step, 0.68)], ((22, 96, 58), (36, 120, 70))[i % 2])
    c.ground(0.67, (70, 92, 46))


def _city(c: _Canvas) -> None:
    c.sky(0.7, clouds=False)
    step = 0.18 * c.unit / c.w
    window = (255, 226, 120) if c.light != "day" else (190, 214, 236)
    for i in range(-1, int(1 / step) + 2):
        top = (0.30, 0.44, 0.24, 0.38)[(i + c.variant) % 4]
        c.block(i * step, top, (i + 0.92) * step, 0.74, c.tint(((120, 128, 148), (148, 122, 118))[i % 2]))
        for row in range(3):
            for col in (0.2, 0.56):
                y = top + 0.05 + 0.10 * row
                c.block((i + col) * step, y, (i + col + 0.2) * step, y + 0.045, window)
    c.ground(0.72, (98, 98, 104))
    for i in range(0, int(2 / step)):
        c.block(i * step, 0.90, (i + 0.45) * step, 0.925, c.tint((235, 225, 170)))


def _clouds(c: _Canvas) -> None:
    c.sky(1.0, clouds=False)
    white: Colour = {"day": (246, 250, 255), "sunset": (252, 196, 170), "night": (120, 128, 172)}[c.light]
    grey: Colour = {"day": (214, 230, 248), "sunset": (226, 150, 150), "night": (84, 92, 140)}[c.light]
    step = 0.24 * c.unit / c.w
    for level, colour, radius in ((0.70, grey, 0.15), (0.84, white, 0.17)):
        for i in range(-1, int(1 / step) + 2):
            c.dot((i + 0.25 * c.variant + level) * step, level, radius, colour)
    c.block(0, 0.84, 1, 1, white)


def _room(c: _Canvas) -> None:
    wall: Colour = (238, 206, 172)
    c.block(0, 0, 1, 1, c.tint(wall) if c.light != "night" else (92, 74, 84))
    x = (0.62, 0.12, 0.38, 0.70)[c.variant]
    width = 0.26 * c.unit / c.w
    top, bottom = _SKY[c.light]
    c.block(x - 0.02, 0.10, x + width + 0.02, 0.42, (250, 244, 232))
    c.block(x, 0.12, x + width, 0.40, top)
    c.block(x, 0.26, x + width, 0.40, bottom)
    c.block(x + width * 0.46, 0.12, x + width * 0.54, 0.40, (250, 244, 232))
    c.ground(0.68, (176, 112, 66) if c.light != "night" else (250, 170, 110))
    for i in range(3):
        c.block(0, 0.76 + 0.09 * i, 1, 0.772 + 0.09 * i, c.tint((140, 84, 48)))


def _underwater(c: _Canvas) -> None:
    top: Colour = {"day": (60, 190, 215), "sunset": (170, 110, 160), "night": (14, 40, 84)}[c.light]
    bottom: Colour = {"day": (12, 84, 158), "sunset": (70, 50, 122), "night": (4, 12, 40)}[c.light]
    c.gradient(top, bottom)
    ray: Colour = (top[0] + 30, min(top[1] + 30, 255), min(top[2] + 30, 255)) if c.light == "day" else top
    for x in (0.15 + 0.1 * c.variant, 0.5 + 0.1 * c.variant):
        c.draw.polygon(
            [(x * c.w, 0), ((x + 0.1) * c.w, 0), ((x + 0.02) * c.w, 0.6 * c.h), ((x - 0.12) * c.w, 0.6 * c.h)], ray
        )
    c.ground(0.84, (206, 190, 130), 0.02, 0.25 * c.variant)
    for i, x in enumerate((0.08, 0.93, 0.20, 0.84)):
        leaf: Colour = ((40, 150, 90), (230, 100, 120))[i % 2]
        c.shape(
            [(x - 0.03, 0.92), (x - 0.02, 0.64 + 0.03 * i), (x + 0.01, 0.74), (x + 0.03, 0.60), (x + 0.03, 0.92)], leaf
        )


_PAINTERS: dict[str, Callable[[_Canvas], None]] = {
    "beach": _beach,
    "desert": _desert,
    "snow": _snow,
    "meadow": _meadow,
    "mountains": _mountains,
    "forest": _forest,
    "city": _city,
    "clouds": _clouds,
    "room": _room,
    "underwater": _underwater,
}


@lru_cache(maxsize=1024)
def background(name: str, light: str, variant: int, width: int, height: int) -> Paint:
    """Return the place `name` in this light, (height, width, 3) in 0…1; the array is shared, do not write to it."""
    canvas = _Canvas(width, height, light, variant)
    _PAINTERS[name](canvas)
    small = canvas.picture.resize((width, height), Image.Resampling.BOX)
    paint: Paint = np.asarray(small, dtype=np.float32) / np.float32(255)
    paint.setflags(write=False)
    return paint
