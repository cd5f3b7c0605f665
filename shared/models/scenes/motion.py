"""Grammar of moving scenes: a scene whose objects move in one of eight ways, over a background that stays or drifts."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from shared.models.scenes.grammar import ORDERS, Scene, held_out, random_scene, slots_of

MOTIONS = ("stay", "left", "right", "up", "down", "grow", "shrink", "hop")
BACKGROUND_MOTIONS = ("still", "drift")
"""A background that drifts moves to the left."""

MOVING_VALUES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"motion": MOTIONS, "background_motion": BACKGROUND_MOTIONS}
)

_MOTION_WORDS = {
    "stay": ("", "stands still", "stays"),
    "left": ("moves to the left", "runs to the left", "goes left"),
    "right": ("moves to the right", "runs to the right", "goes right"),
    "up": ("moves up", "rises", "goes up"),
    "down": ("moves down", "sinks", "goes down"),
    "grow": ("grows", "gets bigger", "grows larger"),
    "shrink": ("shrinks", "gets smaller", "becomes smaller"),
    "hop": ("hops", "jumps up and down", "bounces"),
}
_PLURAL_VERBS = {
    "stands": "stand", "stays": "stay", "moves": "move", "runs": "run", "goes": "go", "rises": "rise",
    "sinks": "sink", "grows": "grow", "gets": "get", "shrinks": "shrink", "becomes": "become", "hops": "hop",
    "jumps": "jump", "bounces": "bounce",
}  # fmt: skip
_DRIFT_WORDS = ("over a drifting background", "with a drifting background", "while the background drifts")

DECIDES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "left": frozenset({"position"}),
        "right": frozenset({"position"}),
        "grow": frozenset({"size", "position"}),
        "shrink": frozenset({"size", "position"}),
    }
)
"""Attributes of the scene that a motion decides. Captions do not name them."""

MOVE_SMALL = ("up", "down", "hop")
"""Motions whose objects are small, so that they have room."""

_CLIP_ORDERS = tuple(order for order in ORDERS if "style of" not in order)
CLIP_WORDINGS = len(_CLIP_ORDERS) * 3
"""Number of wordings of `clip_caption`; wording 0 is the plainest."""


@dataclass(frozen=True, slots=True)
class MovingScene:
    """Content of a clip: the scene, how its objects move, and whether its background drifts."""

    scene: Scene
    motion: str = "stay"
    background_motion: str = "still"

    def __post_init__(self) -> None:
        for name, allowed in MOVING_VALUES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {allowed}, not {getattr(self, name)!r}")

    def labels(self) -> dict[str, int]:
        """Return the index of each value: the scene's attributes, then both motions."""
        own = {name: allowed.index(getattr(self, name)) for name, allowed in MOVING_VALUES.items()}
        return self.scene.labels() | own


def clip_caption(moving: MovingScene, wording: int = 0) -> str:
    """Return a clip's caption in one of `CLIP_WORDINGS` wordings. Every wording names every motion but `stay`."""
    return "".join(before + words for _, before, words in clip_slots(moving, wording))


def still_caption(moving: MovingScene, wording: int = 0) -> str:
    """Return the caption of `clip_caption` without the words for the motions."""
    order, pick = _order(wording)
    hidden = DECIDES.get(moving.motion, frozenset())
    return "".join(before + words for _, before, words in slots_of(moving.scene, order, pick, without=hidden))


def clip_slots(
    moving: MovingScene, wording: int = 0, *, verb: str = "", without: Collection[str] = ()
) -> list[tuple[str, str, str]]:
    """Return a clip's caption in pieces: (part, what stands before it, its words), as `slots_of` does. `verb`: other
    words for the motion; `without`: further attributes that are not named."""
    order, pick = _order(wording)
    moves = verb or motion_phrase(moving, pick)
    drift = drift_phrase(moving, pick)
    hidden = DECIDES.get(moving.motion, frozenset()).union(without)
    return slots_of(moving.scene, order, pick, after_things=moves, at_end=drift, without=hidden)


def _order(wording: int) -> tuple[tuple[str, ...], int]:
    """Return the order of a wording's pieces, and which of three choices of words it takes."""
    return _CLIP_ORDERS[wording % len(_CLIP_ORDERS)], wording // len(_CLIP_ORDERS) % 3


def motion_phrase(moving: MovingScene, pick: int) -> str:
    """Return the words for the objects' motion, one of three choices: "moves to the left", "run to the left" …"""
    verb, _, rest = _MOTION_WORDS[moving.motion][pick].partition(" ")
    if moving.scene.count > 1:
        verb = _PLURAL_VERBS.get(verb, verb)
    return f"{verb} {rest}".strip()


def drift_phrase(moving: MovingScene, pick: int) -> str:
    """Return the words for a background that drifts, one of three choices; empty for one that stays."""
    return _DRIFT_WORDS[pick] if moving.background_motion == "drift" else ""


def random_moving_scene(rng: random.Random, natural_share: float = 0.25) -> MovingScene:
    """Sample a moving scene outside the combinations that are held out of all training."""
    scene = random_scene(rng, natural_share)
    while held_out(scene):
        scene = random_scene(rng, natural_share)
    return with_motion(scene, rng.choice(MOTIONS), rng.choice(BACKGROUND_MOTIONS))


def with_motion(scene: Scene, motion: str, background_motion: str = "still") -> MovingScene:
    """Return a scene in motion. Attributes that the motion itself decides take their defaults: the position of what
    crosses the image, the size of what changes its size. What moves up or down is small, so that it has room."""
    if motion in ("left", "right"):
        scene = replace(scene, position="centre", size="medium" if scene.size == "large" else scene.size)
    elif motion in MOVE_SMALL:
        scene = replace(scene, size="small")
    elif motion in ("grow", "shrink"):
        scene = replace(scene, size="medium", position="centre")
    return MovingScene(scene, motion, background_motion)


def motion_words() -> list[str]:
    """Return every word of the motions' phrases, sorted."""
    phrases = [*_DRIFT_WORDS, *_PLURAL_VERBS.values(), *(one for words in _MOTION_WORDS.values() for one in words)]
    return sorted({word for phrase in phrases for word in re.findall(r"[a-z]+", phrase)})
