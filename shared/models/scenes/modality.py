"""The scenes of one modality, images or clips: their kinds of change, and how they are sampled and captioned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shared.models.scenes.edits import CLIP_EDITS, EDITS, edit, edit_clip
from shared.models.scenes.grammar import WORDINGS, caption, random_scene
from shared.models.scenes.motion import CLIP_WORDINGS, clip_caption, random_moving_scene


@dataclass(frozen=True)
class Grammar:
    """Scenes of one modality: their kinds of change, and the functions that sample, change and caption a scene."""

    edits: Sequence[str]
    wordings: int
    sample: Callable[..., Any]
    """Takes the random numbers, and the share of natural colours."""
    edit: Callable[..., Any]
    """Takes a scene, the kind of change and the random numbers."""
    caption: Callable[[Any, int], str]

    @property
    def single_changes(self) -> tuple[str, ...]:
        """Return the kinds that change one attribute."""
        return tuple(kind for kind in self.edits if kind not in ("paraphrase", "unrelated"))


IMAGES = Grammar(EDITS, WORDINGS, random_scene, edit, caption)
CLIPS = Grammar(CLIP_EDITS, CLIP_WORDINGS, random_moving_scene, edit_clip, clip_caption)


def grammar_of(frames: int) -> Grammar:
    """Return the scenes of images (1 frame), or of clips."""
    return IMAGES if frames == 1 else CLIPS
