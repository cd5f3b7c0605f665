"""Pairs change what they say they change, and are the same whenever they are asked for."""

from __future__ import annotations

from collections import Counter

from services.cli.profiles.pairs import asked_for, right, scene_pairs
from shared.models.scenes import ATTRIBUTES, EDITS


def test_every_kind_of_change_comes_equally_often_and_changes_only_that() -> None:
    pairs = list(scene_pairs(100, seed=3))
    assert Counter(pair.kind for pair in pairs) == dict.fromkeys(EDITS, 10)
    for pair in pairs:
        changed = {name for name in ATTRIBUTES if getattr(pair.before, name) != getattr(pair.after, name)}
        if pair.kind == "unrelated":
            assert {"object", "background"} <= changed
        else:
            assert changed == set(asked_for(pair))
        assert pair.before_seed != pair.after_seed
        assert pair.before_text != pair.after_text or pair.kind in ("size", "position", "count", "paraphrase")


def test_a_pair_depends_on_its_number_and_the_seed_only() -> None:
    assert list(scene_pairs(20, seed=3)) == list(scene_pairs(40, seed=3))[:20]
    assert list(scene_pairs(20, seed=3)) != list(scene_pairs(20, seed=4))


def test_what_came_out_is_read_against_the_scene() -> None:
    pair = next(scene_pairs(1, seed=0))
    judged = {name: str(getattr(pair.after, name)) for name in ATTRIBUTES} | {"object": "nothing"}
    verdict = right(pair.after, judged)
    assert not verdict["object"]
    assert all(verdict[name] for name in ATTRIBUTES if name != "object")
