"""Object and background of captions."""

import random

from shared.domain.parts import Parts
from shared.domain.types import from_json, to_json
from shared.models.scenes import (
    CLIP_WORDINGS,
    WORDINGS,
    MovingScene,
    Scene,
    caption,
    clip_caption,
    random_moving_scene,
    random_scene,
)
from shared.models.scenes.parts import caption_parts, clip_caption_parts


def test_parts_are_pieces_of_the_caption() -> None:
    rng = random.Random(0)
    for number in range(200):
        scene, moving = random_scene(rng), random_moving_scene(rng)
        for (text, parts), plain in (
            (caption_parts(scene, number % WORDINGS), caption(scene, number % WORDINGS)),
            (clip_caption_parts(moving, number % CLIP_WORDINGS), clip_caption(moving, number % CLIP_WORDINGS)),
        ):
            assert text == plain
            assert parts.both
            assert parts.object in text
            assert parts.background in text


def test_motion_and_position_belong_to_the_object_and_light_to_the_place_beside_it() -> None:
    scene = Scene("fox", 2, "red", background="snow", light="night", position="left")
    assert caption_parts(scene)[1] == Parts("two red foxes on the left", "in the snow at night")
    moving = MovingScene(Scene("fox", background="snow", style="pixel"), "hop", "drift")
    text, parts = clip_caption_parts(moving)
    assert text == "a fox hops in the snow, pixel art over a drifting background"
    assert parts == Parts("a fox hops", "in the snow")


def test_parts_are_stored_as_json() -> None:
    parts = Parts("a fox", "in the snow")
    assert from_json(Parts, to_json(parts)) == parts
    assert from_json(Parts, b"{}") == Parts()
    assert not Parts("a fox").both
