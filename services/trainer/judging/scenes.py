"""Choice of the judged scenes, never trained on and balanced over every attribute, and of the grids' scenes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from shared.models.scenes import VALUES, WORDINGS, Scene, caption, held_out, never_trained, random_scene

BLOCK = 64
"""Number of scenes that are balanced as a block: the share of each image size among 256."""

T = TypeVar("T")


def balanced_scenes(count: int, seed: int) -> list[Scene]:
    """Return different scenes of combinations never trained on; every value of every attribute occurs equally often.

    Each `BLOCK` is balanced, too, and the same `seed` gives the same scenes. Objects are those with such combinations
    (`never_trained`).
    """
    rng = random.Random(seed)
    of_object: dict[str, list[tuple[str, str]]] = {}
    for name, place, style in never_trained():
        of_object.setdefault(name, []).append((place, style))
    names = list(islice(_dealt(list(of_object), rng), count))
    places = _places(names, of_object, rng)
    while True:
        found = [
            Scene(name, background=place, style=style, **rest)
            for name, (place, style), rest in zip(names, places, _rests(rng), strict=False)
        ]
        if len(set(found)) == count:  # equal scenes are rare; then the other attributes are dealt again
            return found


def _rests(rng: random.Random) -> Iterator[dict[str, Any]]:
    """Yield the attributes outside the held-out combinations, each dealt from its own decks."""
    dealt = {key: _dealt(VALUES[key], rng) for key in ("count", "colour", "size", "position", "light")}
    while True:
        yield {key: next(values) for key, values in dealt.items()}


def _dealt(values: Sequence[T], rng: random.Random) -> Iterator[T]:
    """Yield values from shuffled decks, one after the other: any stretch holds each value about equally often."""
    while True:
        yield from rng.sample(values, len(values))


def _places(
    names: Sequence[str], of_object: dict[str, list[tuple[str, str]]], rng: random.Random
) -> list[tuple[str, str]]:
    """Choose a background and a style for each object among its combinations, and swap single ones to balance them."""
    found = [rng.choice(of_object[name]) for name in names]
    seen: Counter[tuple[int, str]] = Counter()

    def keys(i: int, pair: tuple[str, str]) -> list[tuple[int, str]]:
        return [(block, value) for value in pair for block in (-1, i // BLOCK)]  # -1 stands for all blocks

    for i, pair in enumerate(found):
        seen.update(keys(i, pair))
    changed = True
    while changed:
        changed = False
        for i, name in enumerate(names):
            seen.subtract(keys(i, found[i]))
            best = min(of_object[name], key=lambda pair: sum(seen[key] for key in keys(i, pair)))
            better = sum(seen[key] for key in keys(i, best)) < sum(seen[key] for key in keys(i, found[i]))
            found[i], changed = (best, True) if better else (found[i], changed)
            seen.update(keys(i, found[i]))
    return found


def grid_prompts(count: int = 48) -> list[str]:
    """Return the held-out prompts of the grids, fixed before any image was generated."""
    rng = random.Random(2026)
    scenes = [scene for scene in (random_scene(rng, 0.3) for _ in range(count * 30)) if held_out(scene)][:count]
    return [caption(scene, i % WORDINGS) for i, scene in enumerate(scenes)]
