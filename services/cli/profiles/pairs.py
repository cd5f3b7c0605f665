"""Pairs of prompts that differ in one known way, for profiling starts of one image from the other."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.models.scenes import ATTRIBUTES, MOVING_VALUES, MovingScene, Scene
from shared.models.scenes.modality import CLIPS as CLIPS
from shared.models.scenes.modality import IMAGES, Grammar
from shared.models.scenes.modality import grammar_of as grammar_of

FURTHER = ("same", "reworded", "several")
"""Further kinds, for the learned bound alone: the same prompt; one change in another wording; 2 to 4 changes at once,
half of them in another wording."""
FIRST_FURTHER = 1_000_000
"""Number of the first pair of a further kind: more pairs of either sort keep all numbers."""
UNCHANGED = "unchanged"
"""Kind of the stitched pairs whose request names exactly the object of one clip and the background of the other."""
_UNREAD = ("size", "position")
"""Attributes that no judge reads off a clip: most motions decide them."""


@dataclass(frozen=True, slots=True)
class ScenePair:
    """Two scenes that differ by one `kind` of change. `after` starts from latents or the image of `before`."""

    number: int
    kind: str
    before: Any
    """A Scene; a MovingScene in a pair of clips."""
    after: Any
    before_text: str
    after_text: str
    before_seed: int
    after_seed: int


@dataclass(frozen=True, slots=True)
class StitchedPair(ScenePair):
    """A request `after`, and prompt and seed of the two clips that it starts from.

    `before` is the scene of both parts together. It equals `after` (UNCHANGED), or differs from it by one `kind` of
    change: of the object, of the background, or of the style, which is in neither part."""

    beside_text: str = ""
    beside_seed: int = 0


def scene_pairs(count: int, seed: int | str, grammar: Grammar = IMAGES) -> Iterator[ScenePair]:
    """Yield `count` pairs, every kind of change equally often; the n-th pair depends only on n and the seed."""
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        kind = grammar.edits[number % len(grammar.edits)]
        before = grammar.sample(rng)
        after = grammar.edit(before, kind, rng)
        wording = rng.randrange(grammar.wordings)
        # a paraphrase changes only the wording, every other edit keeps the wording
        further = rng.randrange(1, grammar.wordings) if kind == "paraphrase" else 0
        texts = grammar.caption(before, wording), grammar.caption(after, (wording + further) % grammar.wordings)
        seeds = rng.getrandbits(32), rng.getrandbits(32)
        yield ScenePair(number, kind, before, after, *texts, *seeds)


def further_pairs(count: int, seed: int | str, grammar: Grammar = IMAGES) -> Iterator[ScenePair]:
    """Yield `count` pairs of the kinds FURTHER, equally often; the n-th pair depends only on n and the seed."""
    for n in range(count):
        number = FIRST_FURTHER + n
        rng = random.Random(f"{seed}/{number}")
        kind = FURTHER[n % len(FURTHER)]
        before = after = grammar.sample(rng)
        changes = {"same": 0, "reworded": 1, "several": rng.randint(2, 4)}[kind]
        for change in rng.sample(grammar.single_changes, changes):
            after = grammar.edit(after, change, rng)
        wording = other = rng.randrange(grammar.wordings)
        if kind == "reworded" or (kind == "several" and rng.random() < 0.5):
            other = (wording + rng.randrange(1, grammar.wordings)) % grammar.wordings
        texts = grammar.caption(before, wording), grammar.caption(after, other)
        seeds = rng.getrandbits(32), rng.getrandbits(32)
        yield ScenePair(number, kind, before, after, *texts, *seeds)


def asked_for(pair: ScenePair) -> Sequence[str]:
    """Return the attributes that the judge looks for in the image: those that differ between the prompts.

    Of a stitched pair, also those that its two clips give: object, motion and background.
    """
    given = ("object", "motion", "background") if isinstance(pair, StitchedPair) else ()
    if pair.kind == "unrelated":
        return given or ("object", "background")
    return (*given, *(name for name in changed(pair) if name not in given))


def changed(pair: ScenePair) -> Sequence[str]:
    """Return every attribute that differs between the two scenes."""
    before, after = attributes(pair.before), attributes(pair.after)
    return tuple(name for name in before if before[name] != after[name])


def attributes(scene: Scene | MovingScene) -> dict[str, str]:
    """Return the attributes that a judge reads off an image or a clip of the scene."""
    if isinstance(scene, MovingScene):
        own = {name: value for name, value in attributes(scene.scene).items() if name not in _UNREAD}
        return own | {name: getattr(scene, name) for name in MOVING_VALUES}
    return {name: str(getattr(scene, name)) for name in ATTRIBUTES}


def right(scene: Scene | MovingScene, judged: Mapping[str, str]) -> dict[str, bool]:
    """Return for each judged attribute whether the image agrees with the scene."""
    own = attributes(scene)
    return {name: own[name] == value for name, value in judged.items()}
