"""Families whose VAE compresses time equal diffusers' own pipelines in every frame; tasks count frames of pixels."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.gpu_worker.engine.events import Advanced, Checkpointed, Finished, LatentCaptured, Left
from services.gpu_worker.engine.row_start import make_row
from services.gpu_worker.engine.rows import FromPicture, FromState, Task, first_noise
from services.gpu_worker.families import load_family
from services.gpu_worker.jobs.codecs import decode_checkpoint, encode_checkpoint
from shared.domain.errors import ModelError
from shared.domain.types import Size
from shared.models import FrameRule, find_card
from tests import tiny_families
from tests.unit.gpu_worker.families.conftest import (
    STEPS,
    TIMED,
    LoadTiny,
    a_picture,
    a_task,
    drawn,
    warnings_of,
)
from tests.unit.gpu_worker.families.test_clips import PLAN, WAYS, events_of, one
from tests.unit.gpu_worker.families.timed_reference import latent_from_frames, timed_clip_of

FRAMES = 9
SIZE = Size(64, 32)
LATENTS = {"wan": (4, 3, 8, 16), "ltx": (4, 2, 4, 8)}
LATENTS |= {"cogvideox-2b": (4, 3, 8, 16), "cogvideox-5b": (4, 3, 8, 16), "cogvideox-1.5": (4, 4, 8, 16)}
"""Shapes of the latent of FRAMES frames."""
VIDEO_TO_VIDEO = {"wan": "WanVideoToVideoPipeline"}
"""Pipelines that start from frames; see latent_from_frames for the other families."""


def a_clip(name: str = "a", **changes: Any) -> Task:
    return a_task(name, **{"size": SIZE, "frames": FRAMES, **changes})


def pictures(frames: int = FRAMES) -> np.ndarray:
    return np.stack([a_picture(SIZE, seed) for seed in range(frames)])


def the_crowd(family: Any) -> list[Task]:
    """Rows of three lengths and two sizes, at timesteps of their own, from every kind of start."""
    state = first_noise(1, family.latent_shape(SIZE, FRAMES)).numpy()
    return [
        a_clip("noise", negative_prompt="blurry"),
        a_clip("state", start=FromState(state, 2, fresh_noise=0.5, noise_seed=3), steps=4, guidance=1.0),
        a_clip("clip", start=FromPicture(pictures(), 4), steps=9, guidance=6.0, seed=9),
        a_clip("long", frames=17, steps=4, prompt="two boats at night"),
        a_clip("image", frames=1, steps=3, seed=8),
        a_clip("large", size=Size(64, 64), steps=3, seed=4),
    ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TIMED)
def test_a_whole_run_equals_the_pipeline_in_every_frame(tiny_family: LoadTiny, name: str, way: str) -> None:
    family, task = tiny_family(name), a_clip(**WAYS[way])
    ours = drawn(family, task)["a"]
    assert ours.latent.shape == LATENTS[name]
    np.testing.assert_allclose(ours.latent, timed_clip_of(family, task), atol=1e-4, rtol=0)
    assert ours.steps_run == STEPS


@pytest.mark.parametrize("name", TIMED)
def test_another_length_and_size_and_the_decoded_frames_are_the_pipelines_too(tiny_family: LoadTiny, name: str) -> None:
    family, task = tiny_family(name), a_clip(size=Size(64, 96), frames=17, steps=2)
    ours = drawn(family, task)["a"]
    frames = (np.asarray(timed_clip_of(family, task, "np")) * 255).round()
    assert ours.pixels.shape == frames.shape == (17, 96, 64, 3)
    assert np.abs(ours.pixels.astype(int) - frames).max() <= 1
    assert ours.pixels.std() > 0


@pytest.mark.parametrize("name", TIMED)
def test_frames_depend_on_each_other(tiny_family: LoadTiny, name: str) -> None:
    family = tiny_family(name)
    start = first_noise(1, family.latent_shape(SIZE, FRAMES)).numpy()
    other = start.copy()
    other[:, -1] = -start[:, -1]
    first, second = (drawn(family, a_clip(start=FromState(one, 2)))["a"].latent[:, 0] for one in (start, other))
    assert np.abs(first - second).max() > 1e-3


@pytest.mark.parametrize("name", TIMED)
def test_states_and_checkpoints_continue_as_the_uninterrupted_run(tiny_family: LoadTiny, name: str) -> None:
    family = tiny_family(name)
    task = a_clip(capture_steps=(3,), checkpoint_every=4, preview=True)
    events = events_of(family, task)
    whole, state, saved = (one(kind, events) for kind in (Finished, LatentCaptured, Checkpointed))
    previews = {event.preview.shape for event in events if isinstance(event, Advanced) and event.preview is not None}
    assert previews == {((FRAMES - 1) // family._frame_ratio + 1, *LATENTS[name][2:], 3)}
    data = encode_checkpoint(saved.latent, saved.step, saved.generator_state, PLAN, saved.noises, saved.previous)
    for start in (decode_checkpoint(data)[0], FromState(state.latent, state.step)):
        resumed = drawn(family, replace(task, start=start))["a"]
        assert resumed.steps_run == STEPS - start.step
        np.testing.assert_allclose(resumed.latent, whole.latent, atol=1e-5, rtol=0)
        assert np.abs(resumed.pixels.astype(int) - whole.pixels).max() <= 1


@pytest.mark.parametrize("name", TIMED)
def test_rows_of_any_length_generate_in_company_what_they_generate_alone(tiny_family: LoadTiny, name: str) -> None:
    family = tiny_family(name)
    crowd = the_crowd(family)
    together = drawn(family, *crowd, at=(0, 2, 1, 1, 0, 2))
    for task in crowd:
        alone = drawn(family, task)[task.id]
        np.testing.assert_allclose(together[task.id].latent, alone.latent, atol=1e-4, rtol=0)
        assert np.abs(together[task.id].pixels.astype(int) - alone.pixels.astype(int)).max() <= 1
    for task in (crowd[0], crowd[3], crowd[4], crowd[5]):
        np.testing.assert_allclose(together[task.id].latent, timed_clip_of(family, task), atol=1e-4, rtol=0)
    assert together["image"].pixels.shape == (32, 64, 3)


@pytest.mark.parametrize("name", TIMED)
def test_batch_invariant_rows_of_any_length_are_bit_identical(tiny_family: LoadTiny, name: str) -> None:
    family = tiny_family(name, batch_invariant=2)
    crowd = the_crowd(family)
    together = drawn(family, *crowd, at=(0, 1, 1, 0, 2, 1))
    for task in crowd:
        alone = drawn(family, task)[task.id]
        assert np.array_equal(together[task.id].latent, alone.latent)
        assert np.array_equal(together[task.id].pixels, alone.pixels)


@pytest.mark.parametrize("start", ["clip", "image"])
@pytest.mark.parametrize("name", TIMED)
def test_a_run_from_frames_is_the_pipelines(tiny_family: LoadTiny, name: str, start: str) -> None:
    """An image starts a clip as a clip that repeats it."""
    family, clip = tiny_family(name), pictures()
    given = clip if start == "clip" else clip[3]
    task = a_clip(steps=8, negative_prompt="blurry", start=FromPicture(given, 4))
    ours = drawn(family, task)["a"]
    assert ours.steps_run == 4
    frames = np.broadcast_to(given, clip.shape)
    theirs = latent_from_frames(family, task, frames, 4, VIDEO_TO_VIDEO.get(name, ""))
    np.testing.assert_allclose(ours.latent, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", TIMED)
def test_frames_are_noised_to_the_level_of_the_step(tiny_family: LoadTiny, name: str) -> None:
    """Flow matching: MoDM eq. 2 at the sampler's own sigma."""
    family, step = tiny_family(name), 3
    task = a_clip(start=FromPicture(pictures(), step))
    with torch.inference_mode():
        row, clean = make_row(family, task), family.encode_picture(pictures(), FRAMES)
    noise = first_noise(task.seed, family.latent_shape(SIZE, FRAMES))
    signal, sigma = row.schedule.level[step].tolist()
    if family.card.sampler.startswith("flow"):
        assert float(row.schedule.timesteps[step]) == pytest.approx(1000 * sigma, rel=1e-5)
        assert signal == pytest.approx(1 - sigma, abs=1e-6)
    assert 0.3 < sigma < 0.97
    np.testing.assert_allclose(row.latent, sigma * noise + signal * clean, atol=1e-5)


@pytest.mark.parametrize("name", TIMED)
def test_lengths_that_the_vae_cannot_generate_are_refused_with_the_rule(tiny_family: LoadTiny, name: str) -> None:
    family = tiny_family(name)
    rule = family.card.frames
    for frames in (FRAMES + 1, rule.most + rule.multiple_of):
        error = one(Left, events_of(family, a_clip(frames=frames))).error
        assert isinstance(error, ModelError)
        assert str(error) == f"task 'a': frames must be from 1 to {rule.most}, {rule.multiple_of}k + 1 (got {frames})"
    error = one(Left, events_of(family, a_clip(start=FromPicture(pictures(FRAMES + 1), 2)))).error
    assert str(error).endswith(f"a clip to start from must have {rule.multiple_of}k + 1 frames (got {FRAMES + 1})")
    error = one(Left, events_of(family, a_clip(start=FromPicture(pictures(17), 2)))).error
    assert "the latent of a 64x32 task of 9 frames must have shape" in str(error)


@pytest.mark.parametrize("name", TIMED)
def test_a_card_whose_lengths_the_vae_cannot_generate_is_refused(saved: Callable[[str], Path], name: str) -> None:
    card = replace(find_card(str(saved(name))), frames=FrameRule(default=1, most=9, multiple_of=2))
    with pytest.raises(ModelError, match=r"frames\.multiple_of must be a multiple of \d \(got 2\)"):
        load_family(card)


@pytest.mark.parametrize("name", TIMED)
def test_a_prompt_that_is_too_long_is_said(tiny_family: LoadTiny, name: str) -> None:
    assert warnings_of(tiny_family(name), a_clip(prompt="x" * 20)) == ()
    (warning,) = warnings_of(tiny_family(name), a_clip(prompt="fox " * 200))
    assert warning.startswith("prompt: only the first ")


def test_wan_with_dpm_solver_equals_the_pipeline(tiny_family: LoadTiny) -> None:
    family, task = tiny_family("wan"), a_clip(sampler="dpm++2m", steps=16)
    np.testing.assert_allclose(drawn(family, task)["a"].latent, timed_clip_of(family, task), atol=1e-4, rtol=0)


def test_wan_keeps_its_vae_and_norms_in_float32(saved: Callable[[str], Path]) -> None:
    family: Any = load_family(replace(find_card(str(saved("wan"))), dtype="bfloat16"))
    parts = dict(family.denoiser.named_parameters())
    kept = {name for name, weight in parts.items() if weight.dtype == torch.float32}
    assert {"scale_shift_table", "blocks.0.norm2.weight", "condition_embedder.time_embedder.linear_1.weight"} <= kept
    assert parts["blocks.0.attn1.to_q.weight"].dtype == parts["patch_embedding.weight"].dtype == torch.bfloat16
    assert (family.pipeline.vae.dtype, family.pipeline.text_encoder.dtype) == (torch.float32, torch.bfloat16)
    assert np.isfinite(drawn(family, a_clip(steps=2))["a"].latent).all()


def test_wan_with_two_transformers_is_refused(saved: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "two"
    folder.mkdir()
    for path in saved("wan").iterdir():
        if path.is_dir():
            (folder / path.name).symlink_to(path)
    index = json.loads((saved("wan") / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps({**index, "boundary_ratio": 0.875}))
    with pytest.raises(ModelError, match=r"model_index\.json: boundary_ratio must be null.* \(got 0\.875\)"):
        load_family(find_card(str(folder)))


def test_ltx_decodes_at_a_timestep_where_its_vae_takes_one(tmp_path: Path) -> None:
    """The pipeline draws the noise of decoding after a given start from the request's generator, ours from seed 0."""
    family: Any = load_family(find_card(str(tiny_families.save(tmp_path / "x", "ltx", timestep_conditioning=True))))
    task = a_clip(steps=2)
    ours = drawn(family, task)["a"]
    start = family.pipeline._pack_latents(first_noise(task.seed, family.latent_shape(SIZE, FRAMES))[None])
    asked = {"latents": start, "decode_timestep": 0.05, "decode_noise_scale": 0.025}
    frames = (np.asarray(timed_clip_of(family, replace(task, seed=0), "np", **asked)) * 255).round()
    assert np.abs(ours.pixels.astype(int) - frames).max() <= 1
    asked["decode_timestep"] = 1.0
    others = (np.asarray(timed_clip_of(family, replace(task, seed=0), "np", **asked)) * 255).round()
    assert np.abs(ours.pixels.astype(int) - others).max() > 1


def test_ltx_whose_decoder_draws_noise_is_refused(tmp_path: Path) -> None:
    noisy = (True,) * 5
    folder = tiny_families.save(tmp_path / "x", "ltx", timestep_conditioning=True, decoder_inject_noise=noisy)
    with pytest.raises(ModelError, match=r"vae/config\.json: decoder_inject_noise must be false.* \(got true\)"):
        load_family(find_card(str(folder)))


def test_cogvideox_1_5_refuses_sizes_beyond_its_positions(tiny_family: LoadTiny) -> None:
    error = one(Left, events_of(tiny_family("cogvideox-1.5"), a_clip(size=Size(64, 112)))).error
    assert isinstance(error, ModelError)
    assert "size must be at most 64x96: the transformer has no positions beyond it (got 64x112)" in str(error)


def test_cogvideox_with_learned_positions_is_refused(tmp_path: Path) -> None:
    learned = {"use_rotary_positional_embeddings": True, "use_learned_positional_embeddings": True}
    folder = tiny_families.save(tmp_path / "x", "cogvideox", **learned)
    with pytest.raises(ModelError, match=r"use_learned_positional_embeddings must be false.* \(got true\)"):
        load_family(find_card(str(folder)))


def test_cogvideox_takes_ddim_steps_where_the_checkpoint_names_its_dpm_solver(
    saved: Callable[[str], Path], tiny_family: LoadTiny, tmp_path: Path
) -> None:
    folder = shutil.copytree(saved("cogvideox-2b"), tmp_path / "dpm")
    for name in ("model_index.json", "scheduler/scheduler_config.json"):
        text = (folder / name).read_text()
        assert "CogVideoXDDIMScheduler" in text
        (folder / name).write_text(text.replace("CogVideoXDDIMScheduler", "CogVideoXDPMScheduler"))
    family: Any = load_family(find_card(str(folder)))
    assert type(family.pipeline.scheduler).__name__ == "CogVideoXDPMScheduler"
    ours, theirs = (drawn(each, a_clip())["a"].latent for each in (family, tiny_family("cogvideox-2b")))
    assert np.array_equal(ours, theirs)
