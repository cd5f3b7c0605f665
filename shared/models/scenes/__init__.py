"""The small world of the bundled models: scenes, their captions, and edits that change one thing at a time."""

from shared.models.scenes.edits import EDITS, edit
from shared.models.scenes.grammar import (
    ATTRIBUTES,
    VALUES,
    WORDINGS,
    Scene,
    all_held_out,
    all_triples,
    caption,
    held_out,
    known_words,
    never_trained,
    random_scene,
)

__all__ = [
    "ATTRIBUTES",
    "EDITS",
    "VALUES",
    "WORDINGS",
    "Scene",
    "all_held_out",
    "all_triples",
    "caption",
    "edit",
    "held_out",
    "known_words",
    "never_trained",
    "random_scene",
]
