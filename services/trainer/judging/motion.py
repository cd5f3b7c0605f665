"""Judge of clips: it reads motion, object, background and count off a clip's frames.

The motion is that of the nearest rendering: the scene is rendered with every motion, over every variant of its
background, and the rendering with the smallest squared error counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from services.trainer.judging.classifier import Reader
from services.trainer.judging.scenes import balanced_scenes
from services.trainer.judging.templates import template_scores
from services.trainer.rendering.clips import render_clip
from services.trainer.rendering.renderer import LAYOUTS, Pixels, Renderer
from shared.models.scenes import BACKGROUND_MOTIONS, MOTIONS, VALUES, MovingScene, with_motion

SEED = 300
"""Seed of the judged moving scenes."""
LOOKS = 4
"""Frames per clip, evenly spaced, that the verdict samples."""
COMPARED = 6
"""Frames per clip, evenly spaced, that are compared with each rendering."""
READ = ("background", "count", "colour", "style", "light")
"""Attributes that the classifier reads off single frames."""


@dataclass(frozen=True, slots=True)
class ClipVerdict:
    """Verdict on one clip."""

    moving: MovingScene
    nearest: MovingScene
    """The scene in the motion of the nearest rendering."""
    net: dict[str, bool]
    """Attributes, true if the classifier reads them off most of the frames."""
    by_template: bool
    """The object's rendering fits the frames better than that of any other object."""

    @property
    def right(self) -> dict[str, bool]:
        """Return whether each attribute is right; an object is right if the classifier and the templates agree."""
        return {
            "object": self.net["object"] and self.by_template,
            "motion": self.nearest.motion == self.moving.motion,
            "background_motion": self.nearest.background_motion == self.moving.background_motion,
            **{name: self.net[name] for name in READ},
        }


def moving_scenes(count: int, seed: int = SEED) -> list[MovingScene]:
    """Return moving scenes of combinations never trained on; each motion occurs equally often."""
    motions = list(product(MOTIONS, BACKGROUND_MOTIONS))
    scenes = balanced_scenes(count, seed)
    return [with_motion(scene, *motions[i % len(motions)]) for i, scene in enumerate(scenes)]


def judged_clip(clip: Pixels, moving: MovingScene, renderer: Renderer, reader: Reader) -> ClipVerdict:
    """Return the verdict on a clip (F, height, width, 3) of a moving scene."""
    nearest, layout = nearest_rendering(clip, moving, renderer)
    looks = [round(at) for at in np.linspace(0, len(clip) - 1, LOOKS)]
    words = reader(clip[looks]).words
    net = {
        name: bool(np.mean([word == str(getattr(moving.scene, name)) for word in words[name]]) > 0.5)
        for name in ("object", *READ)
    }
    names = [str(name) for name in VALUES["object"]]
    others = [replace(nearest, scene=replace(nearest.scene, object=name)) for name in names]
    rendered = [render_clip(renderer, one, *_size(clip), layout, len(clip), looks) for one in others]
    drawn, places = np.stack([one.pixels for one in rendered]), rendered[0].boxes
    scores = np.mean([template_scores(clip[at], drawn[:, i], places[i]) for i, at in enumerate(looks)], axis=0)
    return ClipVerdict(moving, nearest, net, names[int(scores.argmax())] == moving.scene.object)


def nearest_rendering(clip: Pixels, moving: MovingScene, renderer: Renderer) -> tuple[MovingScene, int]:
    """Return the scene in the motion, and the layout, whose rendering has the smallest squared error to a clip."""
    looks = [round(at) for at in np.linspace(0, len(clip) - 1, COMPARED)]
    wanted, found = clip[looks].astype(np.float32), []
    for motion, drift, layout in product(MOTIONS, BACKGROUND_MOTIONS, range(LAYOUTS)):
        one = replace(moving, motion=motion, background_motion=drift)
        drawn = render_clip(renderer, one, *_size(clip), layout, len(clip), looks).pixels
        found.append((float(np.square(wanted - drawn).sum()), one, layout))
    _, nearest, layout = min(found, key=lambda each: each[0])
    return nearest, layout


def _size(clip: Pixels) -> tuple[int, int]:
    return clip.shape[2], clip.shape[1]
