"""Edits of a scene, one change at a time: the kinds of change that a cache has to distinguish."""

from __future__ import annotations

import random
from dataclasses import replace

from shared.models.scenes.grammar import VALUES, Scene, random_scene
from shared.models.scenes.motion import BACKGROUND_MOTIONS, MOTIONS, MovingScene, with_motion

EDITS = ("paraphrase", "style", "light", "colour", "size", "position", "count", "background", "object", "unrelated")
"""Kinds of change from one prompt to the next, roughly from mild to strong."""

CLIP_EDITS = (
    "paraphrase", "style", "light", "colour", "count", "background_motion", "motion", "background", "object",
    "unrelated",
)  # fmt: skip
"""Kinds of change from one clip's prompt to the next. Size and position are left out: most motions decide them."""


def edit(scene: Scene, kind: str, rng: random.Random) -> Scene:
    """Change exactly one attribute of a scene, all of them (`unrelated`), or none (`paraphrase`: another wording).

    Raise ValueError for a kind that is not in `EDITS`.
    """
    if kind == "paraphrase":
        return scene
    if kind == "unrelated":
        other = random_scene(rng)
        return replace(other, object=_another(scene, "object", rng), background=_another(scene, "background", rng))
    if kind not in EDITS:
        raise ValueError(f"kind of edit must be one of {EDITS}, not {kind!r}")
    return replace(scene, **{kind: _another(scene, kind, rng)})  # type: ignore[arg-type]  # one table, two value types


def edit_clip(moving: MovingScene, kind: str, rng: random.Random) -> MovingScene:
    """Change one thing of a moving scene, as `edit` does; another motion may bring another size and position.

    Raise ValueError for a kind that is not in `CLIP_EDITS`.
    """
    if kind not in CLIP_EDITS:
        raise ValueError(f"kind of edit must be one of {CLIP_EDITS}, not {kind!r}")
    motion, drift = moving.motion, moving.background_motion
    if kind == "motion":
        return with_motion(moving.scene, rng.choice([one for one in MOTIONS if one != motion]), drift)
    if kind == "background_motion":
        return with_motion(moving.scene, motion, next(one for one in BACKGROUND_MOTIONS if one != drift))
    if kind == "unrelated":
        motion, drift = rng.choice(MOTIONS), rng.choice(BACKGROUND_MOTIONS)
    return with_motion(edit(moving.scene, kind, rng), motion, drift)


def _another(scene: Scene, attribute: str, rng: random.Random) -> str:
    current = getattr(scene, attribute)
    return rng.choice([value for value in VALUES[attribute] if value != current])  # type: ignore[return-value]  # count is the one attribute of integers
