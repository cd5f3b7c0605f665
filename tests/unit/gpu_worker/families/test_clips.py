"""Every family of clips equals diffusers' own pipeline in every frame: alone, resumed, with rows of other lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Advanced, Checkpointed, Event, Finished, LatentCaptured, Left
from services.gpu_worker.engine.row_start import make_row
from services.gpu_worker.engine.rows import FromPicture, FromState, Task, first_noise
from services.gpu_worker.families import load_family
from services.gpu_worker.jobs.codecs import (
    decode_checkpoint,
    decode_state,
    encode_checkpoint,
    encode_state,
    noises_of,
)
from services.gpu_worker.models.measuring import warm_up
from shared.domain.errors import ModelError
from shared.domain.types import Plan, PlanSource, Size
from shared.models import find_card, memory
from tests import tiny_families
from tests.unit.gpu_worker.families.clip_reference import clip_of, latent_from_clip
from tests.unit.gpu_worker.families.conftest import CLIPS, STEPS, LoadTiny, a_picture, a_task, drawn
from tests.unit.gpu_worker.families.reference import pipeline_of

FRAMES = 5
SIZE = Size(16, 8)
WAYS: dict[str, dict[str, Any]] = {
    "guided": {"guidance": 4.5, "negative_prompt": "blurry"},
    "guided away from nothing": {"guidance": 3.0},
    "unguided": {"guidance": 1.0},
}
PLAN = Plan(source=PlanSource.NOISE, model="m")


def a_clip(name: str = "a", **changes: Any) -> Task:
    return a_task(name, **{"size": SIZE, "frames": FRAMES, **changes})


def events_of(family: Any, task: Task) -> list[Event]:
    engine, events = Engine({"m": family}, tell_every_s=0.0), list[Event]()
    engine.submit(task)
    while not engine.idle:
        events += engine.step()
    return events


def one(kind: type, events: list[Event]) -> Any:
    (found,) = (event for event in events if isinstance(event, kind))
    return found


def a_clip_of_pictures(frames: int = FRAMES) -> np.ndarray:
    return np.stack([a_picture(SIZE, seed) for seed in range(frames)])


def the_crowd(family: Any) -> list[Task]:
    """Rows of two lengths and sizes, at timesteps of their own, from every kind of start."""
    state = first_noise(1, family.latent_shape(SIZE, FRAMES)).numpy()
    return [
        a_clip("noise", negative_prompt="blurry"),
        a_clip("state", start=FromState(state, 2, fresh_noise=0.5, noise_seed=3), steps=4, guidance=1.0),
        a_clip("clip", start=FromPicture(a_clip_of_pictures(), 4), steps=9, guidance=6.0, seed=9),
        a_clip("long", frames=9, steps=4, prompt="two boats at night"),
        a_clip("image", frames=1, steps=3, seed=8),
        a_clip("large", size=Size(16, 16), steps=3, seed=4),
    ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CLIPS)
def test_a_whole_run_equals_the_pipeline_in_every_frame(tiny_family: LoadTiny, name: str, way: str) -> None:
    family, task = tiny_family(name), a_clip(**WAYS[way])
    ours = drawn(family, task)["a"]
    assert ours.latent.shape == (4, FRAMES, 4, 8)
    np.testing.assert_allclose(ours.latent, clip_of(family, task), atol=1e-4, rtol=0)
    assert ours.steps_run == STEPS


@pytest.mark.parametrize("name", CLIPS)
def test_frames_depend_on_each_other(tiny_family: LoadTiny, name: str) -> None:
    """Else the equalities of this file would hold for a model of images, too."""
    family = tiny_family(name)
    start = first_noise(1, family.latent_shape(SIZE, FRAMES)).numpy()
    other = start.copy()
    other[:, -1] = -start[:, -1]
    first, second = (drawn(family, a_clip(start=FromState(one, 2)))["a"].latent[:, 0] for one in (start, other))
    assert np.abs(first - second).max() > 1e-3


@pytest.mark.parametrize("name", CLIPS)
def test_another_length_and_size_and_the_decoded_frames_are_the_pipelines_too(tiny_family: LoadTiny, name: str) -> None:
    family, task = tiny_family(name), a_clip(size=Size(16, 24), frames=12, steps=2)
    ours = drawn(family, task)["a"]
    frames = (np.asarray(clip_of(family, task, output="np")) * 255).round()
    assert ours.pixels.shape == frames.shape == (12, 24, 16, 3)
    assert ours.pixels.dtype == np.uint8
    assert np.abs(ours.pixels.astype(int) - frames).max() <= 1
    assert ours.pixels.std() > 0


@pytest.mark.parametrize("name", CLIPS)
def test_dpm_solver_equals_the_pipeline(tiny_family: LoadTiny, name: str) -> None:
    family, task = tiny_family(name), a_clip(sampler="dpm++2m", steps=4)
    np.testing.assert_allclose(drawn(family, task)["a"].latent, clip_of(family, task), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize("sampler", ["ddim", "dpm++2m"])
def test_states_and_checkpoints_continue_as_the_uninterrupted_run(
    tiny_family: LoadTiny, name: str, sampler: str
) -> None:
    family = tiny_family(name)
    task = a_clip(sampler=sampler, capture_steps=(3,), checkpoint_every=4, preview=True)
    events = events_of(family, task)
    whole, state, saved = (one(kind, events) for kind in (Finished, LatentCaptured, Checkpointed))
    previews = {event.preview.shape for event in events if isinstance(event, Advanced) and event.preview is not None}
    assert previews == {(FRAMES, 4, 8, 3)}
    start, _ = decode_checkpoint(
        encode_checkpoint(saved.latent, saved.step, saved.generator_state, PLAN, saved.noises, saved.previous)
    )
    resumed = drawn(family, replace(task, start=start))["a"]
    assert resumed.steps_run == STEPS - 4
    assert np.array_equal(resumed.latent, whole.latent)
    data = encode_state(state.latent, "fp32", state.noises)
    continued = drawn(family, replace(task, start=FromState(decode_state(data, "fp32"), 3)))["a"]
    assert continued.steps_run == STEPS - 3
    if sampler == "ddim":  # a state has no history for the second-order step
        np.testing.assert_allclose(continued.latent, whole.latent, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", CLIPS)
def test_rows_of_any_length_generate_in_company_what_they_generate_alone(tiny_family: LoadTiny, name: str) -> None:
    family = tiny_family(name)
    crowd = the_crowd(family)
    together = drawn(family, *crowd, at=(0, 2, 1, 1, 0, 2))
    for task in crowd:
        alone = drawn(family, task)[task.id]
        np.testing.assert_allclose(together[task.id].latent, alone.latent, atol=1e-4, rtol=0)
        assert np.abs(together[task.id].pixels.astype(int) - alone.pixels.astype(int)).max() <= 1
    np.testing.assert_allclose(together["noise"].latent, clip_of(family, crowd[0]), atol=1e-4, rtol=0)
    np.testing.assert_allclose(together["long"].latent, clip_of(family, crowd[3]), atol=1e-4, rtol=0)
    assert together["image"].pixels.shape == (8, 16, 3)


@pytest.mark.parametrize("name", CLIPS)
def test_batch_invariant_rows_of_any_length_are_bit_identical(tiny_family: LoadTiny, name: str) -> None:
    family = tiny_family(name, batch_invariant=2)
    crowd = the_crowd(family)
    together = drawn(family, *crowd, at=(0, 1, 1, 0, 2, 1))
    for task in crowd:
        alone = drawn(family, task)[task.id]
        assert np.array_equal(together[task.id].latent, alone.latent)
        assert np.array_equal(together[task.id].pixels, alone.pixels)
    saved = one(Checkpointed, events_of(family, replace(crowd[1], checkpoint_every=1)))
    start, _ = decode_checkpoint(encode_checkpoint(saved.latent, saved.step, saved.generator_state, PLAN))
    resumed = drawn(family, replace(crowd[1], start=start), *crowd[2:4])["state"]
    assert np.array_equal(resumed.latent, together["state"].latent)


@pytest.mark.parametrize("name", CLIPS)
def test_fresh_noise_is_the_first_noise_of_its_seed_in_every_frame(tiny_family: LoadTiny, name: str) -> None:
    family = tiny_family(name)
    shape = family.latent_shape(SIZE, FRAMES)
    state = first_noise(1, shape).numpy()
    starts = (FromState(state, STEPS - 2, fresh_noise=1.0, noise_seed=seed) for seed in (3, 4))
    tasks = [a_clip(start=start, capture_steps=(STEPS - 1,)) for start in starts]
    first, second = (one(LatentCaptured, events_of(family, task)) for task in tasks)
    assert (first.noises, second.noises) == ((3,), (4,))
    spread = float(make_row(family, tasks[0]).schedule.left[STEPS - 2, 1])
    want = spread * (first_noise(3, shape) - first_noise(4, shape)).numpy()
    np.testing.assert_allclose(first.latent - second.latent, want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", CLIPS)
def test_a_clip_is_encoded_frame_by_frame_and_noised_by_the_scheduler(tiny_family: LoadTiny, name: str) -> None:
    family, clip = tiny_family(name), a_clip_of_pictures(18)
    vae, step = family.pipeline.vae, 4
    with torch.inference_mode():
        clean = family.encode_picture(clip)
        pixels = torch.from_numpy(clip).permute(0, 3, 1, 2).float() / 127.5 - 1
        want = torch.stack([vae.encode(one[None]).latent_dist.mode()[0] for one in pixels], dim=1)
        np.testing.assert_allclose(clean, want * vae.config.scaling_factor, atol=1e-5)
        rows = [make_row(family, a_clip(start=FromPicture(start, step))) for start in (clip[:FRAMES], clip[0])]
    noise = first_noise(7, family.latent_shape(SIZE, FRAMES))
    scheduler = pipeline_of(family).scheduler
    scheduler.set_timesteps(STEPS)
    at = scheduler.timesteps[step : step + 1]
    for row, start in zip(rows, (clean[:, :FRAMES], clean[:, :1].expand_as(noise)), strict=True):
        np.testing.assert_allclose(row.latent, scheduler.add_noise(start, noise, at), atol=1e-5)


def test_a_run_from_a_clip_is_the_video_to_video_pipelines(tiny_family: LoadTiny) -> None:
    family, clip = tiny_family("animatediff"), a_clip_of_pictures()
    task = a_clip(steps=8, start=FromPicture(clip, 4))
    with torch.inference_mode():
        clean = family.encode_picture(clip)
    ours = drawn(family, task)["a"]
    assert ours.steps_run == 4
    np.testing.assert_allclose(ours.latent, latent_from_clip(family, task, clean, 4), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", CLIPS)
def test_a_residual_state_of_a_clip_keeps_its_seed_and_is_near(tiny_family: LoadTiny, name: str) -> None:
    state = one(LatentCaptured, events_of(tiny_family(name), a_clip(steps=10, capture_steps=(2,))))
    data = encode_state(state.latent, "residual", state.noises)
    assert noises_of(data, "residual") == (7,)
    kept = decode_state(data, "residual")
    assert np.square(kept - state.latent).mean() < 0.2 * np.square(state.latent).mean()
    assert len(data) < len(encode_state(state.latent, "fp16")) / 8


def test_a_checkpoint_with_the_images_unet_beside_its_adapter_is_the_same_model(
    saved: Callable[[str], Path], tiny_family: LoadTiny, tmp_path: Path
) -> None:
    folder = saved("animatediff")
    apart = tmp_path / "apart"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the seed of `saved`
        pipeline = tiny_families.animatediff(save_apart=apart)
    assert type(pipeline.unet).__name__ == "UNetMotionModel"
    card, merged = find_card(str(apart)), tiny_family("animatediff")
    family: Any = load_family(card)
    assert np.array_equal(drawn(family, a_clip())["a"].latent, drawn(merged, a_clip())["a"].latent)
    assert (card.frames, card.default_size) == (merged.card.frames, merged.card.default_size)
    for folder_, loaded in ((folder, merged), (apart, family)):
        counted = memory.counted(find_card(str(folder_)), folder_)
        # the adapter's weights count once; the files also hold its table of positions, which is no parameter
        assert memory.estimate(counted, rows=1).weights == pytest.approx(loaded.memory_bytes, rel=0.01)


@pytest.mark.parametrize("name", CLIPS)
def test_a_length_outside_the_cards_rule_fails_and_warming_takes_the_default(tiny_family: LoadTiny, name: str) -> None:
    family = tiny_family(name)
    rule = family.card.frames
    left = one(Left, events_of(family, a_clip(frames=rule.most + 1)))
    assert isinstance(left.error, ModelError)
    assert str(left.error) == f"task 'a': frames must be from 1 to {rule.most} (got {rule.most + 1})"
    seen: list[int] = []
    hook = family.denoiser.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[2]))
    warm_up(family)
    hook.remove()
    assert set(seen) == {rule.default}
