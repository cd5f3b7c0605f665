"""Template matching: the advantage of an object's own rendering over other objects' renderings and over a blur."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image, ImageFilter

from services.trainer.rendering.backgrounds import VARIANTS
from services.trainer.rendering.renderer import HEIGHTS, Box, Pixels, Renderer, boxes
from shared.models.scenes import VALUES, Scene

MARGIN = 2
"""Pixels around an object's box that are compared, too."""
SHIFT = 1
"""Pixels by which an object may be off its place."""
BLUR = 1 / 8
"""Deviation of the blur that stands for "no object", in sides of the object: it keeps the outline and removes the
inside."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Match:
    """Match of an image with a scene's templates: correlations −1…1, averaged over the scene's objects."""

    name: str
    """The object that fits best."""
    margin: float
    """Advantage of the scene's object over the best other object; below 0 if another one fits better."""
    sharpness: float
    """Advantage of the object over its own blurred rendering."""


def match(picture: Pixels, scene: Scene, renderer: Renderer) -> Match:
    """Compare an image (height, width, 3) with every object's rendering in an otherwise unchanged `scene`.

    The background's variant is chosen outside the objects' boxes. Inside, the better of both heights counts, with each
    object at its best place within `SHIFT` pixels.
    """
    height, width = picture.shape[:2]
    names = [str(name) for name in VALUES["object"]]
    own = names.index(scene.object)
    variant = _variant(picture, scene, renderer)
    best: Floats | None = None
    for layout in range(variant, len(HEIGHTS) * VARIANTS, VARIANTS):
        places = boxes(scene, width, height, layout)
        drawn = [renderer.render(replace(scene, object=name), width, height, layout).pixels for name in names]
        scores = template_scores(picture, np.stack([*drawn, blurred(drawn[own], scene)]), places)
        if best is None or scores[:-1].max() > best[:-1].max():
            best = scores
    assert best is not None
    others = np.delete(best[:-1], own)
    return Match(names[int(best[:-1].argmax())], float(best[own] - others.max()), float(best[own] - best[-1]))


def blurred(picture: Pixels, scene: Scene) -> Pixels:
    """Return the image (height, width, 3) with the insides of its objects blurred away and their outlines kept."""
    x0, _, x1, _ = boxes(scene, picture.shape[1], picture.shape[0])[0]
    return np.asarray(Image.fromarray(picture).filter(ImageFilter.GaussianBlur((x1 - x0) * BLUR)))


def _variant(picture: Pixels, scene: Scene, renderer: Renderer) -> int:
    height, width = picture.shape[:2]
    outside = np.ones((height, width), dtype=np.bool_)
    for layout in range(0, len(HEIGHTS) * VARIANTS, VARIANTS):
        for x0, y0, x1, y1 in boxes(scene, width, height, layout):
            outside[y0:y1, x0:x1] = False
    found = picture.astype(np.float32)
    drawn = (renderer.render(scene, width, height, v).pixels.astype(np.float32) for v in range(VARIANTS))
    return int(np.argmin([np.square(found - one)[outside].sum() for one in drawn]))


def template_scores(picture: Pixels, templates: Pixels, places: tuple[Box, ...]) -> Floats:
    """Return the correlation of T templates (T, height, width, 3) with an image: best shift, mean over the places."""
    padded = [(MARGIN, MARGIN), (MARGIN, MARGIN), (0, 0)]
    wide = [(MARGIN + SHIFT, MARGIN + SHIFT)] * 2 + [(0, 0)]
    framed = np.pad(picture.astype(np.float32), wide, mode="edge")
    drawn = np.pad(templates.astype(np.float32), [(0, 0), *padded], mode="edge")
    found = []
    for x0, y0, x1, y1 in places:
        w, h = x1 - x0 + 2 * MARGIN, y1 - y0 + 2 * MARGIN
        windows = sliding_window_view(framed[y0 : y0 + h + 2 * SHIFT, x0 : x0 + w + 2 * SHIFT], (h, w), axis=(0, 1))
        shifted = windows.transpose(0, 1, 3, 4, 2).reshape(-1, h * w, 3)  # one row per shift
        cut = drawn[:, y0 : y0 + h, x0 : x0 + w].reshape(len(drawn), h * w, 3)
        found.append((_unit(cut) @ _unit(shifted).T).max(axis=1))
    scores: Floats = np.mean(found, axis=0)
    return scores


def _unit(patches: Floats) -> Floats:
    """Return patches (N, pixels, 3) as unit vectors, each channel centred on its mean."""
    flat = (patches - patches.mean(axis=1, keepdims=True)).reshape(len(patches), -1)
    found: Floats = flat / (np.linalg.norm(flat, axis=1, keepdims=True) + 1e-3)
    return found
