"""Phrases of a scene's object and background, as a text extractor takes them out of a prompt (FlexCache §4.2.1)."""

from __future__ import annotations

import random

from shared.models.scenes import MovingScene, caption_of, drift_phrase, motion_phrase

_ARTICLES = ("a", "an", "the")
_PREPOSITIONS = ("in", "on", "at", "inside", "under", "above", "near")
_PLACES = (("background",), ("background", "light"), ("light", "background"))
_PICKS = 3


def object_phrase(moving: MovingScene, rng: random.Random) -> str:
    """Return a phrase of the objects: number, looks and, at times, motion and position; some lack their article."""
    pick, still = rng.randrange(_PICKS), rng.random() < 0.4
    action = "" if still else motion_phrase(moving, pick)
    without = [name for name in ("size", "colour") if rng.random() < 0.2]
    order = ("things", "position") if rng.random() < 0.25 else ("things",)
    phrase = caption_of(moving.scene, order, pick, after_things=action, without=without)
    first, _, rest = phrase.partition(" ")
    if first not in _ARTICLES or rng.random() < 0.6:
        return phrase
    return rest if rng.random() < 0.6 else f"the {rest}"


def background_phrase(moving: MovingScene, rng: random.Random) -> str:
    """Return a phrase of the place, at times with its light and its drift; some lack their preposition."""
    pick = rng.randrange(_PICKS)
    drift = drift_phrase(moving, pick) if rng.random() < 0.5 else ""
    phrase = caption_of(moving.scene, rng.choice(_PLACES), pick, at_end=drift)
    first, _, rest = phrase.partition(" ")
    return rest if rest and first in _PREPOSITIONS and rng.random() < 0.3 else phrase
