"""Pairs of prompts that differ in one known way, for profiling starts of one image from the other."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shared.models.scenes import ATTRIBUTES, EDITS, WORDINGS, Scene, caption, edit, random_scene

FURTHER = ("same", "reworded", "several")
"""Further kinds, for the learned bound alone: the same prompt; one change in another wording; 2 to 4 changes at once,
half of them in another wording."""
FIRST_FURTHER = 1_000_000
"""Number of the first pair of a further kind: more pairs of either sort keep all numbers."""
_ONE_CHANGE = tuple(kind for kind in EDITS if kind not in ("paraphrase", "unrelated"))


@dataclass(frozen=True, slots=True)
class ScenePair:
    """Two scenes that differ by one `kind` of change. `after` starts from latents or the image of `before`."""

    number: int
    kind: str
    before: Scene
    after: Scene
    before_text: str
    after_text: str
    before_seed: int
    after_seed: int


def scene_pairs(count: int, seed: int | str) -> Iterator[ScenePair]:
    """Yield `count` pairs, every kind of change equally often; the n-th pair depends only on n and the seed."""
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        kind = EDITS[number % len(EDITS)]
        before = random_scene(rng)
        after = edit(before, kind, rng)
        wording = rng.randrange(WORDINGS)
        # a paraphrase changes only the wording, every other edit keeps the wording
        other = (wording + rng.randrange(1, WORDINGS)) % WORDINGS if kind == "paraphrase" else wording
        seeds = rng.getrandbits(32), rng.getrandbits(32)
        yield ScenePair(number, kind, before, after, caption(before, wording), caption(after, other), *seeds)


def further_pairs(count: int, seed: int | str) -> Iterator[ScenePair]:
    """Yield `count` pairs of the kinds FURTHER, equally often; the n-th pair depends only on n and the seed."""
    for n in range(count):
        number = FIRST_FURTHER + n
        rng = random.Random(f"{seed}/{number}")
        kind = FURTHER[n % len(FURTHER)]
        before = after = random_scene(rng)
        for change in rng.sample(_ONE_CHANGE, {"same": 0, "reworded": 1, "several": rng.randint(2, 4)}[kind]):
            after = edit(after, change, rng)
        wording = other = rng.randrange(WORDINGS)
        if kind == "reworded" or (kind == "several" and rng.random() < 0.5):
            other = (wording + rng.randrange(1, WORDINGS)) % WORDINGS
        seeds = rng.getrandbits(32), rng.getrandbits(32)
        yield ScenePair(number, kind, before, after, caption(before, wording), caption(after, other), *seeds)


def asked_for(pair: ScenePair) -> Sequence[str]:
    """Return the attributes that differ between the two prompts; the judge looks for them in the image."""
    return ("object", "background") if pair.kind == "unrelated" else changed(pair)


def changed(pair: ScenePair) -> Sequence[str]:
    """Return every attribute that differs between the two scenes."""
    return tuple(name for name in ATTRIBUTES if getattr(pair.before, name) != getattr(pair.after, name))


def right(scene: Scene, judged: Mapping[str, str]) -> dict[str, bool]:
    """Return for each judged attribute whether the image agrees with the scene."""
    return {name: str(getattr(scene, name)) == value for name, value in judged.items()}
