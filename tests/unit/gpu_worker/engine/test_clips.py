"""Clips: rows of any size and length share the step batch, and their latents keep the axis of frames throughout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Advanced, BatchRan, Checkpointed, Event, Finished, LatentCaptured, Left
from services.gpu_worker.engine.layout import denoise_by_shape, step_rows
from services.gpu_worker.engine.row_start import make_row
from services.gpu_worker.engine.rows import FromCheckpoint, FromPicture, FromState, Task, first_noise
from services.gpu_worker.families import Family, load_family
from shared.domain.errors import ModelError
from shared.domain.types import Size
from shared.models import FrameRule, find_card
from tests.unit.gpu_worker.engine.conftest import drive, finished, task

SIZE = Size(32, 16)
"""8 × 4 cells of the no-op model."""


@pytest.fixture(scope="module")
def noop() -> Family:
    return load_family(find_card("noop:"))


def clip(name: str = "a", frames: int = 5, **changes: object) -> Task:
    return task(name, size=SIZE, frames=frames, guidance=1.0, **changes)


def of(events: list[Event], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def test_clips_and_images_of_any_length_and_size_share_the_batch(noop: Family) -> None:
    crowd = [clip("short", 2), clip("long", 7), clip("image", 1), clip("other", 2, steps=4)]
    crowd += [task("wide", size=Size(64, 16), frames=2, guidance=1.0)]
    events = drive(noop, [(number, one) for number, one in enumerate(crowd)], max_rows=16)
    assert max(event.rows for event in of(events, BatchRan)) == len(crowd)
    for one in crowd:
        done = finished(events)[one.id]
        length = () if one.frames == 1 else (one.frames,)
        assert done.latent.shape == (4, *length, one.size.height // 4, one.size.width // 4)
        assert done.pixels.shape == (*length, one.size.height, one.size.width, 3)
        assert done.pixels.dtype == np.uint8
        assert np.array_equal(done.latent, finished(drive(noop, [(0, one)]))[one.id].latent)


def test_pixels_bound_a_step_beside_rows(noop: Family) -> None:
    engine = Engine({"large": noop}, max_pixels=6 * SIZE.width * SIZE.height)
    for one in (clip("a", 5, steps=1), clip("image", 1, steps=1), clip("later", 1, steps=1), clip("long", 7, steps=1)):
        engine.submit(one)
    events: list[Event] = []
    while not engine.idle:
        events += engine.step()
    assert [event.rows for event in of(events, BatchRan)] == [2, 1, 1]


def test_captures_checkpoints_and_previews_of_a_clip_have_its_frames(noop: Family) -> None:
    one = clip(steps=4, capture_steps=(2,), checkpoint_every=2, preview=True)
    events = drive(noop, [(0, one)])
    (captured,), (saved,) = of(events, LatentCaptured), of(events, Checkpointed)
    assert captured.latent.shape == saved.latent.shape == (4, 5, 4, 8)
    assert captured.noises == (7,)
    assert {event.preview.shape for event in of(events, Advanced)} == {(5, 4, 8, 3)}
    for start in (
        FromState(captured.latent, 2),
        FromCheckpoint(saved.latent, 2, saved.generator_state, saved.noises, previous=saved.latent),
    ):
        ended = finished(drive(noop, [(0, replace(one, start=start))]))["a"]
        assert ended.steps_run == 2
        assert np.array_equal(ended.latent, finished(events)["a"].latent)


def test_a_clip_starts_from_a_clip_or_from_an_image_that_stands_for_every_frame(noop: Family) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 16, 32, 3), dtype=np.uint8)
    for given, frame_of in ((pixels, lambda frame: pixels[frame]), (pixels[3], lambda _: pixels[3])):
        row = make_row(noop, clip(start=FromPicture(given, 4)))
        noise = first_noise(7, (4, 5, 4, 8))
        for frame in range(5):
            want = row.schedule.add_noise(noop.encode_picture(frame_of(frame)), noise[:, frame], 4)
            assert torch.equal(row.latent[:, frame], want)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"start": FromState(np.zeros((4, 3, 4, 8), np.float32), 2)},
            r"a 32x16 task of 5 frames must .*\(4, 3, 4, 8\)",
        ),
        (
            {"start": FromState(np.zeros((4, 4, 8), np.float32), 2)},
            r"must have shape \(4, 5, 4, 8\) \(got \(4, 4, 8\)\)",
        ),
        ({"start": FromPicture(np.zeros((3, 16, 32, 3), np.uint8), 2)}, r"must have shape .*\(got \(4, 3, 4, 8\)\)"),
        ({"frames": 1001}, r"frames must be from 1 to 1000 \(got 1001\)"),
        ({"frames": 0}, r"frames must be from 1 to 1000 \(got 0\)"),
    ],
)
def test_a_clip_of_another_length_fails_alone(noop: Family, changes: dict[str, object], said: str) -> None:
    events = drive(noop, [(0, clip(**changes)), (0, clip("b"))])  # type: ignore[arg-type]
    (left,) = of(events, Left)
    assert (left.id, type(left.error)) == ("a", ModelError)
    with pytest.raises(ModelError, match=said):
        raise left.error
    assert len(of(events, Finished)) == 1


def test_a_model_of_images_generates_no_clip(family: Family) -> None:
    assert family.card.frames == FrameRule(default=1, most=1)
    engine = Engine({"large": family})
    engine.submit(task(frames=2))
    (left,) = of(engine.step(), Left)
    assert str(left.error) == "task 'a': frames must be 1 (got 2)"


def test_padding_counts_frames(noop: Family) -> None:
    """A batch of clips of 4 frames is padded to 2 rows if one of images is padded to 8, whatever runs beside."""
    seen: list[tuple[int, ...]] = []

    def forward(latents: torch.Tensor, *_: Any) -> torch.Tensor:
        seen.append(tuple(latents.shape))
        return latents

    rows = [make_row(noop, clip(str(frames), frames)) for frames in (4, 4, 4, 1, 16)]
    step_rows(rows, lambda passes: denoise_by_shape(passes, forward, 8))
    assert [(shape[0], shape[2:-2]) for shape in seen] == [(2, (4,)), (2, (4,)), (8, ()), (1, (16,))]
