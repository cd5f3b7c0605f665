"""The judge calls real renders right, wrong ones wrong, and asks only what was never trained on."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from services.trainer.judge import balanced_scenes, judge_model, judged, match_object, real_pictures, summary
from services.trainer.renderer import Renderer
from shared.scenes import ATTRIBUTES, VALUES, Scene, edit, held_out


def all_first(pictures: npt.NDArray[np.uint8]) -> dict[str, list[str]]:
    """A judge that sees the first value of everything."""
    return {name: [str(values[0])] * len(pictures) for name, values in VALUES.items()}


def test_prompts_are_held_out_and_balanced() -> None:
    scenes = balanced_scenes(144, seed=1)
    assert all(held_out(scene) for scene in scenes)
    assert set(Counter(scene.object for scene in scenes).values()) == {4}
    places = Counter(scene.background for scene in scenes)
    assert len(places) == len(VALUES["background"])
    assert min(places.values()) >= 7
    assert scenes == balanced_scenes(144, seed=1)


def test_templates_find_the_object_in_real_renders(renderer: Renderer) -> None:
    scenes = balanced_scenes(36, seed=2)
    right = [match_object(renderer.render(s, layout=i).pixels, s, renderer) == s.object for i, s in enumerate(scenes)]
    assert np.mean(right) >= 0.97


def test_templates_do_not_believe_the_prompt(renderer: Renderer) -> None:
    rng = random.Random(3)
    fooled = 0
    for scene in balanced_scenes(24, seed=3):
        other = edit(scene, "object", rng)
        fooled += match_object(renderer.render(other).pixels, scene, renderer) == scene.object
    assert fooled == 0


def test_the_stricter_judge_counts(renderer: Renderer) -> None:
    scene = Scene("fox", background="mountains")
    pictures = np.stack([renderer.render(scene).pixels, renderer.render(replace(scene, object="hat")).pixels])
    found = summary(judged(pictures, [scene, scene], renderer, all_first))
    assert found["object_by_net"] == 1.0
    assert found["object_by_template"] == 0.5
    assert found["object"] == 0.5
    assert found["background"] == 0.0


def test_a_summary_has_every_attribute_overall_and_by_size(renderer: Renderer) -> None:
    found = judge_model(real_pictures(renderer), renderer, all_first, count=8)
    assert set(ATTRIBUTES) <= set(found)
    assert set(found["by_size"]) == {"64x64", "96x64", "64x96", "96x96"}
    assert found["pictures"] == 8
