"""What a scene can be, how it is said, and what is held out."""

from __future__ import annotations

import random
import re

import pytest

from shared.models.scenes import (
    ATTRIBUTES,
    VALUES,
    WORDINGS,
    Scene,
    all_held_out,
    all_triples,
    caption,
    edit,
    held_out,
    known_words,
    never_trained,
    random_scene,
)


def scenes(count: int, seed: int = 0) -> list[Scene]:
    rng = random.Random(seed)
    return [random_scene(rng) for _ in range(count)]


def test_the_world_is_as_large_as_promised() -> None:
    sizes = {name: len(values) for name, values in VALUES.items()}
    assert sizes["object"] >= 36
    assert sizes["background"] >= 10
    assert (sizes["count"], sizes["colour"], sizes["size"], sizes["position"]) == (3, 7, 3, 3)
    assert (sizes["light"], sizes["style"]) == (3, 4)


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_a_value_outside_the_grammar_is_refused(attribute: str) -> None:
    with pytest.raises(ValueError, match=f"scene {attribute} must be one of"):
        Scene(**{"object": "fox", attribute: "zebra crossing"})  # type: ignore[arg-type]


def test_the_plainest_caption_is_short() -> None:
    assert caption(Scene("fox", background="snow")) == "a fox in the snow"
    full = Scene("fox", 2, "red", "small", "left", "snow", "night", "pixel")
    assert caption(full) == "two small red foxes on the left in the snow at night, pixel art"


@pytest.mark.parametrize("wording", range(WORDINGS))
def test_distinct_scenes_have_distinct_captions_in_every_wording(wording: int) -> None:
    found: dict[str, Scene] = {}
    for scene in scenes(3000):
        assert found.setdefault(caption(scene, wording), scene) == scene


def test_every_wording_is_another_way_to_say_it() -> None:
    full = Scene("fox", 2, "red", "small", "left", "snow", "night", "pixel")
    assert len({caption(full, wording) for wording in range(WORDINGS)}) == WORDINGS


def test_every_edit_of_one_attribute_changes_every_wording() -> None:
    rng = random.Random(4)
    for scene in scenes(200):
        for attribute in ATTRIBUTES:
            changed = edit(scene, attribute, rng)
            for wording in range(WORDINGS):
                assert caption(scene, wording) != caption(changed, wording)


def test_known_words_cover_every_caption_and_nothing_else() -> None:
    said = {
        word
        for i, scene in enumerate(scenes(6000))
        for word in re.findall(r"[a-z0-9]+", caption(scene, i % WORDINGS).lower())
    }
    assert said == set(known_words())


def test_held_out_combinations_never_move() -> None:
    found = all_held_out()
    assert len(found) == 180
    assert len(all_triples()) == 1440
    assert found[0] == ("fox", "mountains", "3d")
    assert held_out(Scene("fox", background="mountains", count=3))
    assert not held_out(Scene("fox", background="beach"))


def test_every_object_background_and_style_is_held_out_somewhere_and_trained_somewhere() -> None:
    held = all_held_out()
    for place, name in enumerate(("object", "background", "style")):
        for value in VALUES[name]:
            assert 4 <= sum(triple[place] == value for triple in held) < len(all_triples()) / len(VALUES[name]) / 2


def test_labels_and_values_are_each_others_inverse() -> None:
    for scene in scenes(50):
        values = [VALUES[name][i] for name, i in scene.labels().items()]
        assert Scene(*values) == scene  # type: ignore[arg-type]


def test_random_scenes_are_seeded_and_balanced() -> None:
    assert scenes(20, seed=9) == scenes(20, seed=9)
    assert scenes(20, seed=9) != scenes(20, seed=10)
    natural = sum(scene.colour == "natural" for scene in scenes(7000))
    assert 850 < natural < 1150


def test_what_was_never_trained_on_is_what_the_hash_alone_holds_out() -> None:
    unseen, held = never_trained(), set(all_held_out())
    assert len(unseen) == len(set(unseen)) == 163
    assert set(unseen) < held
    late = held - set(unseen)
    assert ("tree", "beach", "3d") in late
    assert {name for name, _, _ in unseen} == {*VALUES["object"]} - {"tree"}
