"""Other wordings of the captions of moving scenes: "swims to the left", "takes off", "in a snowy forest"."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from shared.models.scenes.motion import MOVE_SMALL, MovingScene, clip_slots

PLACES: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "beach": ("on a sandy beach", "along the beach", "by the sea", "at the seaside", "on the shore"),
        "desert": ("through the desert", "across the desert", "on sand dunes", "in the hot desert"),
        "snow": ("in a snowy forest", "through the snow", "on snow", "in a snowy landscape", "in winter", "on the ice"),
        "meadow": ("on the grass", "in a field", "in a garden", "in a park", "on a lawn", "across a green field"),
        "mountains": ("on a mountain", "in the hills", "over the mountains", "in front of a mountain"),
        "forest": ("in the woods", "through the forest", "in a dark forest", "among trees", "in a jungle"),
        "city": ("on a street", "through the city", "in a town", "on the road", "in front of houses"),
        "clouds": ("in the sky", "in the blue sky", "through the clouds", "over the clouds"),
        "room": ("in a house", "in the kitchen", "in a bedroom", "at home"),
        "underwater": ("in the ocean", "in the sea", "in the water", "in a lake", "under the water"),
    }
)
"""Background of a scene → other words for it."""

_SIDEWAYS = (
    "walks to the {}", "flies to the {}", "swims to the {}", "drives to the {}", "walks {}", "runs {}", "moves {}",
    "is running to the {}", "running to the {}", "moving {}", "hurries to the {}", "goes to the {}",
    "crosses to the {}",
)  # fmt: skip
VERBS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "stay": ("sits", "sits still", "waits", "is standing still", "rests", "stands", "sleeps"),
        "left": tuple(verb.format("left") for verb in _SIDEWAYS),
        "right": tuple(verb.format("right") for verb in _SIDEWAYS),
        "up": ("flies up", "floats up", "is rising", "rising", "climbs", "lifts off", "takes off", "moves upwards"),
        "down": ("falls", "falls down", "drops", "descends", "is sinking", "sinking", "dives", "moves downwards"),
        "grow": ("is growing", "growing", "gets larger", "becomes bigger", "becomes larger", "swells", "expands"),
        "shrink": ("is shrinking", "shrinking", "gets tiny", "becomes tiny", "gets small", "grows smaller"),
        "hop": ("jumps", "is hopping", "is jumping", "hopping", "jumps around", "dances", "hops up and down", "leaps"),
    }
)
"""Motion → other words for it, in the singular."""

_PLURALS = {"is": "are", "flies": "fly", "crosses": "cross", "goes": "go", "hurries": "hurry"}


def free_words() -> frozenset[str]:
    """Return the words of all verbs and places."""
    verbs = (_agreeing(verb, count) for verbs in VERBS.values() for verb in verbs for count in (1, 2))
    return frozenset(word for text in (*verbs, *(one for of in PLACES.values() for one in of)) for word in text.split())


def free_wording(moving: MovingScene, wording: int, rng: random.Random, share: float = 0.6) -> str:
    """Return a clip's caption in one of `CLIP_WORDINGS` wordings, with other words for its motion and for its place,
    each with probability `share`. Objects that move up, down or hop are small; half of the captions omit the size."""
    unsized = {"size"} if moving.motion in MOVE_SMALL and rng.random() < 0.5 else frozenset[str]()
    verb = rng.choice(VERBS[moving.motion]) if rng.random() < share else ""
    place = rng.choice(PLACES[moving.scene.background]) if rng.random() < share else ""
    slots = clip_slots(moving, wording, verb=_agreeing(verb, moving.scene.count), without=unsized)
    return "".join(before + (place if part == "background" and place else words) for part, before, words in slots)


def _agreeing(verb: str, count: int) -> str:
    """Return the verb, in the plural if `count` is above 1."""
    first, _, rest = verb.partition(" ")
    if count > 1 and not first.endswith("ing"):
        first = _PLURALS.get(first, first.removesuffix("s"))
    return f"{first} {rest}".strip()
