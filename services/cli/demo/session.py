"""The prompts of the demo: one user who refines a picture step by step, and another who comes by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shared.models.scenes import Scene, caption


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request of the session: what `user` asks for, and what changed since their last one."""

    user: str
    text: str
    change: str


def session() -> Sequence[Prompt]:
    """Twelve requests: ten by ana (nine changes, one exact repeat), two by ben, all in the bundled models' words."""
    fox = Scene("fox", background="snow")
    night = replace(fox, light="night")
    red = replace(night, colour="red")
    painted = replace(red, style="watercolour")
    left = replace(painted, position="left")
    forest = replace(left, background="forest")
    boat = Scene("sailboat", background="beach", light="sunset")
    return (
        Prompt("ana", caption(fox), "a first picture"),
        Prompt("ana", caption(fox, 6), "the same in other words"),
        Prompt("ana", caption(night), "light"),
        Prompt("ana", caption(red), "colour"),
        Prompt("ben", caption(boat), "another user, another picture"),
        Prompt("ana", caption(painted), "style"),
        Prompt("ana", caption(left), "position"),
        Prompt("ana", caption(night), "back to the third: an exact repeat"),
        Prompt("ben", caption(replace(night, size="large")), "another user near ana's picture"),
        Prompt("ana", caption(forest), "background"),
        Prompt("ana", caption(replace(forest, count=2)), "count"),
        Prompt("ana", caption(replace(forest, object="rabbit")), "object"),
    )
