"""The small world of the bundled models: scenes, their captions, and edits that change one thing at a time."""

from shared.models.scenes.edits import CLIP_EDITS, EDITS, edit, edit_clip
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
from shared.models.scenes.motion import (
    BACKGROUND_MOTIONS,
    CLIP_WORDINGS,
    MOTIONS,
    MOVING_VALUES,
    MovingScene,
    clip_caption,
    motion_words,
    random_moving_scene,
    with_motion,
)

__all__ = [
    "ATTRIBUTES",
    "BACKGROUND_MOTIONS",
    "CLIP_EDITS",
    "CLIP_WORDINGS",
    "EDITS",
    "MOTIONS",
    "MOVING_VALUES",
    "VALUES",
    "WORDINGS",
    "MovingScene",
    "Scene",
    "all_held_out",
    "all_triples",
    "caption",
    "clip_caption",
    "edit",
    "edit_clip",
    "held_out",
    "known_words",
    "motion_words",
    "never_trained",
    "random_moving_scene",
    "random_scene",
    "with_motion",
]
