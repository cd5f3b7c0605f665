"""Edits change one thing and say which."""

from __future__ import annotations

import random

import pytest

from shared.models.scenes import ATTRIBUTES, EDITS, edit, random_scene


def test_the_kinds_of_edit() -> None:
    assert set(EDITS) == {*ATTRIBUTES, "paraphrase", "unrelated"}


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_an_edit_changes_exactly_its_attribute(kind: str) -> None:
    rng = random.Random(kind)
    for _ in range(100):
        scene = random_scene(rng)
        changed = edit(scene, kind, rng)
        assert [name for name in ATTRIBUTES if getattr(scene, name) != getattr(changed, name)] == [kind]


def test_a_paraphrase_changes_nothing_of_the_scene() -> None:
    rng = random.Random(1)
    scene = random_scene(rng)
    assert edit(scene, "paraphrase", rng) == scene


def test_an_unrelated_scene_shares_neither_object_nor_background() -> None:
    rng = random.Random(2)
    for _ in range(100):
        scene = random_scene(rng)
        other = edit(scene, "unrelated", rng)
        assert other.object != scene.object
        assert other.background != scene.background


def test_edits_are_seeded() -> None:
    scene = random_scene(random.Random(3))
    assert edit(scene, "object", random.Random(5)) == edit(scene, "object", random.Random(5))


def test_an_unknown_kind_names_the_known_ones() -> None:
    rng = random.Random(0)
    with pytest.raises(ValueError, match="paraphrase"):
        edit(random_scene(rng), "weather", rng)
