"""Grammar of scenes: their attributes, their captions, and the combinations held out from all training."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import product
from types import MappingProxyType

OBJECTS = (
    "fox", "dog", "panda", "rabbit", "frog", "penguin", "elephant", "whale", "fish", "turtle", "butterfly", "snail",
    "duck", "car", "bus", "rocket", "sailboat", "umbrella", "balloon", "house", "castle", "tree", "mushroom",
    "sunflower", "hamburger", "cupcake", "donut", "snowman", "robot", "ghost", "star", "heart", "gift", "crown", "hat",
    "moon",
)  # fmt: skip
COUNTS = (1, 2, 3)
COLOURS = ("natural", "red", "yellow", "green", "blue", "purple", "white")
SIZES = ("small", "medium", "large")
POSITIONS = ("left", "centre", "right")
BACKGROUNDS = ("beach", "desert", "snow", "meadow", "mountains", "forest", "city", "clouds", "room", "underwater")
LIGHTS = ("day", "sunset", "night")
STYLES = ("3d", "pixel", "sketch", "watercolour")

VALUES: Mapping[str, tuple[str | int, ...]] = MappingProxyType(
    {
        "object": OBJECTS,
        "count": COUNTS,
        "colour": COLOURS,
        "size": SIZES,
        "position": POSITIONS,
        "background": BACKGROUNDS,
        "light": LIGHTS,
        "style": STYLES,
    }
)
"""Every attribute of a scene and the values it takes, in the order of the fields of `Scene`."""

ATTRIBUTES = tuple(VALUES)

HELD_OUT_SHARE = 0.10
HELD_OUT_PER_OBJECT = 4
"""Minimum number of held-out combinations per object. All combinations whose hash is in the lowest share are held out
too."""

_IRREGULAR = {"fox": "foxes", "butterfly": "butterflies", "fish": "fish", "bus": "buses"}
_COUNT_WORDS = {2: ("two", "a pair of", "2"), 3: ("three", "a group of three", "3")}
_SIZE_WORDS = {"small": ("small", "little", "tiny"), "medium": ("", "medium", ""), "large": ("large", "big", "huge")}
_POSITION_WORDS = {
    "left": ("on the left", "on the left side", "at the left"),
    "centre": ("", "in the middle", "in the centre"),
    "right": ("on the right", "on the right side", "at the right"),
}
_BACKGROUND_WORDS = {
    "beach": ("on a beach", "on the beach", "at the beach"),
    "desert": ("in the desert", "in a desert", "in a sandy desert"),
    "snow": ("in the snow", "in a snowy field", "in deep snow"),
    "meadow": ("in a meadow", "in a green meadow", "on the grass of a meadow"),
    "mountains": ("in the mountains", "in front of mountains", "near the mountains"),
    "forest": ("in a forest", "in the forest", "in a forest of firs"),
    "city": ("in a city", "in the city", "on a city street"),
    "clouds": ("above the clouds", "in the clouds", "on the clouds"),
    "room": ("in a room", "in a living room", "inside a room"),
    "underwater": ("under water", "underwater", "under the sea"),
}
_LIGHT_WORDS = {
    "day": ("", "by day", "in daylight"),
    "sunset": ("at sunset", "in the evening sun", "at dusk"),
    "night": ("at night", "by night", "in the dark of night"),
}
_STYLE_WORDS = {
    "3d": ("", "3d render", "3d picture"),
    "pixel": ("pixel art", "8-bit pixel art", "pixel graphics"),
    "sketch": ("pencil sketch", "pencil drawing", "sketch"),
    "watercolour": ("watercolour", "watercolour painting", "watercolor"),
}
ORDERS = (
    ("things", "position", "background", "light", ",style"),
    ("style of", "things", "background", "light", ",position"),
    ("things", "background", "position", ",light", ",style"),
    ("background", ",things", "position", "light", ",style"),
    ("light", "background", ",things", "position", ",style"),
    ("style of", "things", "position", "light", "background"),
)
"""Orders of a caption's parts; a comma is literal, `style of` stands for "a … of"."""

WORDINGS = len(ORDERS) * 3
"""Number of wordings of `caption`; wording 0 is the plainest."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Content of one image; every field takes one of `VALUES`."""

    object: str
    count: int = 1
    colour: str = "natural"
    size: str = "medium"
    position: str = "centre"
    background: str = "meadow"
    light: str = "day"
    style: str = "3d"

    def __post_init__(self) -> None:
        for name, allowed in VALUES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"scene {name} must be one of {allowed}, not {getattr(self, name)!r}")

    def labels(self) -> dict[str, int]:
        """Return the index of each attribute's value in `VALUES`."""
        return {name: allowed.index(getattr(self, name)) for name, allowed in VALUES.items()}


def caption(scene: Scene, wording: int = 0) -> str:
    """Return a scene's caption in one of `WORDINGS` wordings; unnamed attributes have the defaults of `Scene`.

    Every wording names every attribute that differs from its default. Count 1 and natural colour are never named;
    some wordings also omit medium, centre, day and 3d.
    """
    return caption_of(scene, ORDERS[wording % len(ORDERS)], wording // len(ORDERS) % 3)


def caption_of(
    scene: Scene,
    order: Sequence[str],
    pick: int,
    *,
    after_things: str = "",
    at_end: str = "",
    without: Collection[str] = (),
) -> str:
    """Return a scene's caption: one of `ORDERS`, and the choice `pick` of every phrase.

    `after_things` follows the objects, `at_end` the whole caption; a clip's caption names its motion so. Attributes in
    `without` are not named."""
    slots = slots_of(scene, order, pick, after_things=after_things, at_end=at_end, without=without)
    return "".join(before + words for _, before, words in slots)


def slots_of(
    scene: Scene,
    order: Sequence[str],
    pick: int,
    *,
    after_things: str = "",
    at_end: str = "",
    without: Collection[str] = (),
) -> list[tuple[str, str, str]]:
    """Return a caption in pieces: (part, what stands before it, its words), as in `caption_of`."""
    size = "" if "size" in without else _SIZE_WORDS[scene.size][pick]
    colour = "" if scene.colour == "natural" or "colour" in without else scene.colour
    style = _STYLE_WORDS[scene.style][pick]
    parts = {
        "things": f"{_things(scene, size, colour, pick)} {after_things}".strip(),
        "position": "" if "position" in without else _POSITION_WORDS[scene.position][pick],
        "background": _BACKGROUND_WORDS[scene.background][pick],
        "light": _LIGHT_WORDS[scene.light][pick],
        "style": style,
        "style of": f"{_article(style)} {style} of" if style else "",
    }
    slots: list[tuple[str, str, str]] = []
    for slot, words in [*((slot, parts[slot.removeprefix(",")]) for slot in order), ("at_end", at_end)]:
        if words:
            before = "" if not slots else ", " if slot.startswith(",") else " "
            slots.append((slot.removeprefix(","), before, words))
    return slots


def random_scene(rng: random.Random, natural_share: float = 1 / len(COLOURS)) -> Scene:
    """Sample a scene; the values of each attribute are equally likely, except natural colour with its own share."""
    natural = rng.random() < natural_share
    return Scene(
        object=rng.choice(OBJECTS),
        count=rng.choice(COUNTS),
        colour="natural" if natural else rng.choice(COLOURS[1:]),
        size=rng.choice(SIZES),
        position=rng.choice(POSITIONS),
        background=rng.choice(BACKGROUNDS),
        light=rng.choice(LIGHTS),
        style=rng.choice(STYLES),
    )


def held_out(scene: Scene) -> bool:
    """Return whether a scene's object × background × style combination is held out from all training."""
    return (scene.object, scene.background, scene.style) in _held_out_triples()


def all_triples() -> list[tuple[str, str, str]]:
    """Return every (object, background, style)."""
    return list(product(OBJECTS, BACKGROUNDS, STYLES))


def all_held_out() -> list[tuple[str, str, str]]:
    """Return the (object, background, style) combinations held out from all training, about an eighth of all."""
    return [triple for triple in all_triples() if triple in _held_out_triples()]


def never_trained() -> list[tuple[str, str, str]]:
    """Return the held-out combinations that the bundled weights never saw in training: those held out by hash alone.

    `HELD_OUT_PER_OBJECT` was added after the training of these weights began, so they saw some of the combinations that
    it alone holds out. Of the result, no combination has a tree, and one has a fish.
    """
    return [triple for triple in all_held_out() if _place_of(triple) < HELD_OUT_SHARE]


def known_words() -> list[str]:
    """Return every word of any wording of any scene, sorted, in lower case."""
    tables: Sequence[Mapping[str, Sequence[str]]] = (_SIZE_WORDS, _POSITION_WORDS, _BACKGROUND_WORDS, _LIGHT_WORDS)
    phrases = [phrase for table in tables for choices in table.values() for phrase in choices]
    phrases += [phrase for choices in _STYLE_WORDS.values() for phrase in choices]
    phrases += [phrase for choices in _COUNT_WORDS.values() for phrase in choices]
    phrases += [*OBJECTS, *(_plural(name) for name in OBJECTS), *COLOURS[1:], "a", "an", "of"]
    return sorted({word for phrase in phrases for word in re.findall(r"[a-z0-9]+", phrase.lower())})


@lru_cache(maxsize=1)
def _held_out_triples() -> frozenset[tuple[str, str, str]]:
    found = {triple for triple in all_triples() if _place_of(triple) < HELD_OUT_SHARE}
    for name in OBJECTS:
        of_object = [triple for triple in all_triples() if triple[0] == name]
        found.update(sorted(of_object, key=_place_of)[:HELD_OUT_PER_OBJECT])
    return frozenset(found)


def _place_of(triple: tuple[str, str, str]) -> float:
    """Return a combination's hash in 0…1, the same on every machine and in every version."""
    return int.from_bytes(hashlib.sha256("|".join(triple).encode()).digest()[:4], "big") / 2**32


def _things(scene: Scene, size: str, colour: str, pick: int) -> str:
    adjectives = [word for word in (size, colour) if word]
    if scene.count == 1:
        words = " ".join([*adjectives, scene.object])
        return f"{_article(words)} {words}"
    return " ".join([_COUNT_WORDS[scene.count][pick], *adjectives, _plural(scene.object)])


def _article(words: str) -> str:
    return "an" if words[:1] in "aeiou8" else "a"


def _plural(name: str) -> str:
    return _IRREGULAR.get(name, name + "s")


assert tuple(field.name for field in fields(Scene)) == ATTRIBUTES
