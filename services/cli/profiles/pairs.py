"""Pairs of prompts that differ in one known way, for profiling starts of one image from the other."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shared.models.scenes import EDITS, WORDINGS, Scene, caption, edit, random_scene


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


def scene_pairs(count: int, seed: int) -> Iterator[ScenePair]:
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


def asked_for(pair: ScenePair) -> Sequence[str]:
    """Return the attributes that differ between the two prompts; the judge looks for them in the image."""
    if pair.kind == "paraphrase":
        return ()
    return ("object", "background") if pair.kind == "unrelated" else (pair.kind,)


def right(scene: Scene, judged: Mapping[str, str]) -> dict[str, bool]:
    """Return for each judged attribute whether the image agrees with the scene."""
    return {name: str(getattr(scene, name)) == value for name, value in judged.items()}
