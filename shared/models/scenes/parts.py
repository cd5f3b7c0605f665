"""Object and background that a caption of the grammar names, for training and judging extractors (FlexCache §4.2.1)."""

from __future__ import annotations

from collections.abc import Sequence

from shared.domain.parts import Parts
from shared.models.scenes.grammar import ORDERS, Scene, slots_of
from shared.models.scenes.motion import MovingScene, clip_slots


def caption_parts(scene: Scene, wording: int = 0) -> tuple[str, Parts]:
    """Return a scene's caption and its parts; wordings as in `caption`."""
    return _joined(slots_of(scene, ORDERS[wording % len(ORDERS)], wording // len(ORDERS) % 3))


def clip_caption_parts(moving: MovingScene, wording: int = 0) -> tuple[str, Parts]:
    """Return a clip's caption and its parts; wordings as in `clip_caption`."""
    return _joined(clip_slots(moving, wording))


def _joined(slots: Sequence[tuple[str, str, str]]) -> tuple[str, Parts]:
    """Return the text, the objects with their motion and the position right after them, and the place.

    Light and a drifting background belong to the place where they stand beside it.
    """
    names = [name for name, _, _ in slots]
    things, place = names.index("things"), names.index("background")
    after = things + 1
    if names[after : after + 1] == ["position"] and slots[after][1] == " ":
        after += 1
    first, last = place, place + 1
    while first and names[first - 1] == "light":
        first -= 1
    while last < len(slots) and names[last] in ("light", "at_end"):
        last += 1
    text = "".join(before + words for _, before, words in slots)
    return text, Parts(_text(slots[things:after]), _text(slots[first:last]))


def _text(slots: Sequence[tuple[str, str, str]]) -> str:
    return "".join(before * (number > 0) + words for number, (_, before, words) in enumerate(slots))


def wording_held_out(wording: int) -> bool:
    """Return whether extractors are not trained on this wording: every fourth of images and of clips."""
    return wording % 4 == 3
