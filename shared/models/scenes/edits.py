"""Edits of a scene, one change at a time: the kinds of change that a cache has to distinguish."""

from __future__ import annotations

import random
from dataclasses import replace

from shared.models.scenes.grammar import VALUES, Scene, random_scene

EDITS = ("paraphrase", "style", "light", "colour", "size", "position", "count", "background", "object", "unrelated")
"""Kinds of change from one prompt to the next, roughly from mild to strong."""


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


def _another(scene: Scene, attribute: str, rng: random.Random) -> str:
    current = getattr(scene, attribute)
    return rng.choice([value for value in VALUES[attribute] if value != current])  # type: ignore[return-value]  # count is the one attribute of integers
