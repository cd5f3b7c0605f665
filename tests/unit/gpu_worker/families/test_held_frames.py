"""Held frames: a clip's first frames stay the given ones, and nothing else of a run changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from services.gpu_worker.engine.events import Advanced, Checkpointed, Finished, LatentCaptured, Left
from services.gpu_worker.engine.row_start import make_row
from services.gpu_worker.engine.rows import FromPicture, Task, first_noise
from services.gpu_worker.jobs.codecs import decode_checkpoint, encode_checkpoint
from shared.domain.errors import ModelError
from shared.domain.types import Size
from tests.unit.gpu_worker.families.conftest import CLIPS, STEPS, TIMED, LoadTiny, a_picture, a_task, drawn
from tests.unit.gpu_worker.families.test_clips import PLAN, events_of, one

FRAMES, HELD = 9, 5
SIZE = Size(32, 16)
FAMILIES = [*CLIPS, *TIMED]
SAMPLERS = [(name, "") for name in FAMILIES] + [(name, "dpm++2m") for name in (*CLIPS, "wan")]
"""Family and sampler; empty: the family's own."""


def lengths(family: Any) -> tuple[int, int, int]:
    """Frames of a run, of those held, and of another run, as the family's rule allows them."""
    return (17, 9, 9) if family.card.frames.multiple_of == 8 else (FRAMES, HELD, 13)


def a_clip(name: str = "a", **changes: Any) -> Task:
    return a_task(name, **{"size": SIZE, "frames": FRAMES, **changes})


def pictures(frames: int = HELD) -> np.ndarray:
    return np.stack([a_picture(SIZE, seed) for seed in range(frames)])


def encoded(family: Any, clip: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        return family.encode_picture(clip).numpy()


@pytest.mark.parametrize(("name", "sampler"), SAMPLERS)
def test_held_frames_end_as_given_and_change_the_frames_after_them(
    tiny_family: LoadTiny, name: str, sampler: str
) -> None:
    family = tiny_family(name)
    frames, held, _ = lengths(family)
    task = a_clip(frames=frames, held=pictures(held), capture_steps=(3,), preview=True, sampler=sampler)
    events = events_of(family, task)
    done, state = one(Finished, events), one(LatentCaptured, events)
    clean = encoded(family, pictures(held))
    cells = clean.shape[1]
    assert np.array_equal(done.latent[:, :cells], clean)
    free = drawn(family, replace(task, held=None))["a"]
    assert np.abs(done.latent[:, cells:] - free.latent[:, cells:]).max() > 1e-3
    noise = first_noise(7, done.latent.shape)[:, :cells]
    level = make_row(family, task).schedule.add_noise(torch.from_numpy(clean), noise, 3).numpy()
    np.testing.assert_allclose(state.latent[:, :cells], level, atol=1e-6)
    last = [event.preview for event in events if isinstance(event, Advanced) and event.preview is not None][-1]
    shown = family.preview(torch.from_numpy(clean))
    assert np.array_equal(last[: len(shown)], shown)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_first_frames_of_a_clip_are_encoded_without_the_later_ones(tiny_family: LoadTiny, name: str) -> None:
    """Else held frames would differ from the same frames within a longer clip."""
    family = tiny_family(name)
    frames, held, _ = lengths(family)
    clip = pictures(frames)
    first = encoded(family, clip[:held])
    np.testing.assert_allclose(first, encoded(family, clip)[:, : first.shape[1]], atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_run_with_held_frames_resumes_bit_identical_in_company(tiny_family: LoadTiny, name: str) -> None:
    family = tiny_family(name, batch_invariant=2)
    frames, held, other = lengths(family)
    task = a_clip(frames=frames, held=pictures(held), checkpoint_every=4)
    crowd = [
        a_clip("plain", frames=frames, seed=3),
        a_clip("image", frames=frames, held=pictures(1), start=FromPicture(pictures()[0], 2), steps=5, guidance=1.0),
        a_clip("other", frames=other, held=pictures(1), steps=4),
    ]
    events = events_of(family, task)
    whole, saved = one(Finished, events), one(Checkpointed, events)
    together = drawn(family, task, *crowd, at=(0, 1, 2, 0))
    assert np.array_equal(together["a"].latent, whole.latent)
    for one_of in crowd:
        assert np.array_equal(together[one_of.id].latent, drawn(family, one_of)[one_of.id].latent)
    start, _ = decode_checkpoint(
        encode_checkpoint(saved.latent, saved.step, saved.generator_state, PLAN, saved.noises, saved.previous)
    )
    resumed = drawn(family, replace(task, start=start), crowd[2])["a"]
    assert resumed.steps_run == STEPS - 4
    assert np.array_equal(resumed.latent, whole.latent)
    assert np.array_equal(resumed.pixels, whole.pixels)


@pytest.mark.parametrize("held", [pictures(FRAMES), pictures()[:, :8], pictures(13)], ids=["all", "small", "more"])
def test_held_frames_that_do_not_fit_fail_the_task_alone(tiny_family: LoadTiny, held: np.ndarray) -> None:
    left = one(Left, events_of(tiny_family("animatediff"), a_clip(held=held)))
    assert isinstance(left.error, ModelError)
    assert str(left.error).startswith("task 'a': held frames must be fewer than the 9 of the task, and of size 32x16")
