"""The prompts of the demo: one user refines an image with another seed each time, and a second user joins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shared.models.scenes import Scene, caption


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request of the session: the prompt of `user`, and its change from the user's last prompt."""

    user: str
    text: str
    change: str
    seed: int = 0
    """Added to the seed of the demo: equal requests have equal numbers."""


def session() -> Sequence[Prompt]:
    """Return twelve requests in the bundled models' words: ten by ana, one of them an exact repeat, and two by ben."""
    fox = Scene("fox", background="snow")
    night = replace(fox, light="night")
    red = replace(night, colour="red")
    painted = replace(red, style="watercolour")
    left = replace(painted, position="left")
    forest = replace(left, background="forest")
    boat = Scene("sailboat", background="beach", light="sunset")
    return (
        Prompt("ana", caption(fox), "a first image", 0),
        Prompt("ana", caption(night), "an edit: light", 1),
        Prompt("ana", caption(red), "an edit: colour", 2),
        Prompt("ana", caption(red, 14), "the same in other words", 3),
        Prompt("ben", caption(boat), "another user, an unrelated image", 4),
        Prompt("ana", caption(painted), "an edit: style", 5),
        Prompt("ana", caption(left), "an edit: position", 6),
        Prompt("ana", caption(left), "a re-roll: the same prompt with another seed", 7),
        Prompt("ana", caption(left), "a re-roll with a third seed", 8),
        Prompt("ana", caption(night), "back to the second: an exact repeat", 1),
        Prompt("ben", caption(replace(night, size="large")), "another user near ana's image", 9),
        Prompt("ana", caption(forest), "an edit: background", 10),
    )
