"""Pairs of prompts that differ in one known way: what the profiler starts one picture from another with."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shared.models.scenes import EDITS, WORDINGS, Scene, caption, edit, random_scene


@dataclass(frozen=True, slots=True)
class ScenePair:
    """The picture of `after` starts from latents, or the picture, of `before`; they differ by one `kind` of change."""

    number: int
    kind: str
    before: Scene
    after: Scene
    before_text: str
    after_text: str
    before_seed: int
    after_seed: int


def scene_pairs(count: int, seed: int) -> Iterator[ScenePair]:
    """`count` pairs, every kind of change equally often; the n-th pair depends on n and the seed only."""
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        kind = EDITS[number % len(EDITS)]
        before = random_scene(rng)
        after = edit(before, kind, rng)
        wording = rng.randrange(WORDINGS)
        # a paraphrase changes the words alone, every other edit keeps the way of saying it
        other = (wording + rng.randrange(1, WORDINGS)) % WORDINGS if kind == "paraphrase" else wording
        seeds = rng.getrandbits(32), rng.getrandbits(32)
        yield ScenePair(number, kind, before, after, caption(before, wording), caption(after, other), *seeds)


def asked_for(pair: ScenePair) -> Sequence[str]:
    """The attributes that differ between the two prompts: whether they came out is what the judge is asked."""
    if pair.kind == "paraphrase":
        return ()
    return ("object", "background") if pair.kind == "unrelated" else (pair.kind,)


def right(scene: Scene, judged: Mapping[str, str]) -> dict[str, bool]:
    """Which attributes of the picture are what the scene says, by a judge's reading of it."""
    return {name: str(getattr(scene, name)) == value for name, value in judged.items()}
