"""The prompts of the demo: one user refines an image step by step, and a second user joins."""

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
        Prompt("ana", caption(fox), "a first image"),
        Prompt("ana", caption(fox, 6), "the same in other words"),
        Prompt("ana", caption(night), "light"),
        Prompt("ana", caption(red), "colour"),
        Prompt("ben", caption(boat), "another user, another image"),
        Prompt("ana", caption(painted), "style"),
        Prompt("ana", caption(left), "position"),
        Prompt("ana", caption(night), "back to the third: an exact repeat"),
        Prompt("ben", caption(replace(night, size="large")), "another user near ana's image"),
        Prompt("ana", caption(forest), "background"),
        Prompt("ana", caption(replace(forest, count=2)), "count"),
        Prompt("ana", caption(replace(forest, object="rabbit")), "object"),
    )
