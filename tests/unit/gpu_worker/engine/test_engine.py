"""The engine's promises on a tiny real model: pipeline's equal, batched = solo, resumed = uninterrupted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Checkpointed, Finished, LatentCaptured
from services.gpu_worker.engine.rows import FromPicture, FromState, Task
from services.gpu_worker.families import Family
from services.gpu_worker.families.unet import UNetFamily
from services.gpu_worker.jobs.codecs import decode_checkpoint, decode_state, encode_checkpoint, encode_state
from shared.domain.types import Size
from tests.unit.gpu_worker.conftest import LoadFamily
from tests.unit.gpu_worker.engine.conftest import PLAN, STEPS, drive, finished, solo, task


@pytest.mark.parametrize("guidance", [1.0, 2.5])
@pytest.mark.parametrize("size", [Size(64, 64), Size(96, 64)], ids=str)
def test_a_whole_run_equals_the_pipeline(family: UNetFamily, guidance: float, size: Size) -> None:
    noise = family.initial_noise(size, torch.Generator().manual_seed(7))
    pipeline = family.pipeline
    said = {
        "prompt": "a red fox",
        "negative_prompt": "blurry",
        "num_inference_steps": STEPS,
        "guidance_scale": guidance,
        "height": size.height,
        "width": size.width,
        "latents": noise[None],
    }
    latent = pipeline(**said, output_type="latent").images[0]
    picture = np.asarray(pipeline(**said, output_type="pil").images[0])
    ours = solo(family, task(guidance=guidance, size=size, negative_prompt="blurry"))
    np.testing.assert_allclose(ours.latent, latent.numpy(), atol=1e-4)
    assert ours.pixels.shape == (size.height, size.width, 3)
    assert np.abs(ours.pixels.astype(int) - picture.astype(int)).max() <= 1
    assert ours.steps_run == STEPS


def test_the_first_steps_of_a_run_need_not_see_the_prompt(family: UNetFamily) -> None:
    def state(**changes: object) -> np.ndarray:
        run = drive(family, [(0, task("a", **changes))])
        (captured,) = (one for one in run if isinstance(one, LatentCaptured))
        return captured.latent

    empty = state(prompt="", guidance=1.0, capture_steps=(2,))
    np.testing.assert_allclose(state(prompted_from=2, capture_steps=(2,)), empty, atol=1e-4)
    later = solo(family, task(prompted_from=2)).latent
    np.testing.assert_allclose(later, solo(family, task(start=FromState(empty, 2))).latent, atol=1e-4)
    assert np.abs(later - solo(family, task()).latent).max() > 1e-2
    # the empty prompt, whatever the later steps take
    negative = state(prompted_from=2, capture_steps=(2,), negative_prompt="blurry")
    np.testing.assert_allclose(negative, empty, atol=1e-4)
    np.testing.assert_allclose(state(prompted_from=2, capture_steps=(2,), guidance=1.0), empty, atol=1e-4)


@st.composite
def crowds(draw: st.DrawFn) -> list[tuple[int, Task]]:
    """Requests that join when they like, with any size, guidance, seed and T; some of them hits."""
    crowd = []
    for number in range(draw(st.integers(2, 6))):
        steps = draw(st.sampled_from([2, 3, 5]))
        size = draw(st.sampled_from([Size(64, 64), Size(96, 64), Size(64, 96)]))
        hit = draw(st.booleans())
        latent = np.random.default_rng(number).standard_normal((4, size.height // 4, size.width // 4))
        start_step = draw(st.integers(1, steps - 1))
        fresh = draw(st.sampled_from([0.0, 0.5]))
        start = FromState(latent.astype(np.float32), start_step, fresh, noise_seed=number)
        one = task(
            f"t{number}",
            prompt=draw(st.sampled_from(["a red fox", "two boats at night"])),
            steps=steps,
            size=size,
            guidance=draw(st.sampled_from([1.0, 2.5, 7.0])),
            seed=draw(st.integers(0, 2**63 - 1)),
            sampler=draw(st.sampled_from(["", "dpm++2m"])),
            prompted_from=draw(st.sampled_from([0, 2])),
            **({"start": start} if hit else {}),
        )
        crowd.append((draw(st.integers(0, 5)), one))
    return crowd


@settings(max_examples=6)
@given(crowd=crowds(), max_rows=st.integers(1, 4))
def test_batched_equals_solo(load: LoadFamily, crowd: list[tuple[int, Task]], max_rows: int) -> None:
    together = finished(drive(load(0), crowd, max_rows))
    for _, one in crowd:
        alone = solo(load(0), one)
        np.testing.assert_allclose(together[one.id].latent, alone.latent, atol=1e-4)
        assert np.abs(together[one.id].pixels.astype(int) - alone.pixels.astype(int)).max() <= 1


@settings(max_examples=6)
@given(crowd=crowds(), max_rows=st.integers(1, 4))
def test_batched_equals_solo_to_the_bit_when_batch_invariant(
    load: LoadFamily, crowd: list[tuple[int, Task]], max_rows: int
) -> None:
    together = finished(drive(load(4), crowd, max_rows))
    for _, one in crowd:
        alone = solo(load(4), one)
        assert np.array_equal(together[one.id].latent, alone.latent)
        assert np.array_equal(together[one.id].pixels, alone.pixels)


@pytest.mark.parametrize("step", [1, 4, 9])
def test_a_run_resumed_from_its_captured_state_equals_the_uninterrupted_one(load: LoadFamily, step: int) -> None:
    events = drive(load(2), [(0, task(capture_steps=(step,)))])
    whole = finished(events)["a"]
    (captured,) = [event for event in events if isinstance(event, LatentCaptured)]
    for codec, tolerance in (("fp32", 0.0), ("fp16", 2e-2), ("int8", 2e-1)):
        state = decode_state(encode_state(captured.latent, codec), codec)
        resumed = solo(load(2), task(start=FromState(state, step)))
        assert resumed.steps_run == STEPS - step
        np.testing.assert_allclose(resumed.latent, whole.latent, atol=tolerance, rtol=0)
    unpadded = solo(load(0), task(start=FromState(captured.latent, step)))
    np.testing.assert_allclose(unpadded.latent, solo(load(0), task()).latent, atol=1e-4)


def test_a_crash_resumes_from_its_checkpoint_to_the_bit(load: LoadFamily) -> None:
    start = FromState(np.random.default_rng(0).standard_normal((4, 16, 16)).astype(np.float32), 2, 0.5, noise_seed=3)
    events = drive(load(2), [(0, task(start=start, checkpoint_every=3))])
    whole = finished(events)["a"]
    checkpoints = [event for event in events if isinstance(event, Checkpointed)]
    assert [checkpoint.step for checkpoint in checkpoints] == [5, 8]
    for saved in checkpoints:
        again, _ = decode_checkpoint(encode_checkpoint(saved.latent, saved.step, saved.generator_state, PLAN))
        resumed = solo(load(2), task(start=again))
        assert np.array_equal(resumed.pixels, whole.pixels)
        assert np.array_equal(resumed.latent, whole.latent)


def test_checkpoints_are_as_far_apart_as_they_should_be(family: Family) -> None:
    """A step that takes .4 s by the engine's clock: of every two steps' checkpoints only those a second apart."""
    now = [0.0]
    engine = Engine({family.card.name: family}, clock=lambda: now[0])
    engine.submit(task(checkpoint_every=2, checkpoint_gap_s=1.0))
    saved = list[int]()
    while not engine.idle:
        saved += [event.step for event in engine.step() if isinstance(event, Checkpointed)]
        now[0] += 0.4
    assert saved == [4, 8]


def test_stochastic_runs_resume_from_checkpoints_with_their_generator(tiny_folder: object) -> None:
    from services.gpu_worker.families import load_family
    from shared.models import find_card

    card = replace(find_card(f"{tiny_folder}/large"), eta=0.8)
    family = load_family(card, batch_invariant=2)
    events = drive(family, [(0, task(checkpoint_every=4))])
    whole = finished(events)["a"]
    saved = next(event for event in events if isinstance(event, Checkpointed))
    again, _ = decode_checkpoint(encode_checkpoint(saved.latent, saved.step, saved.generator_state, PLAN))
    assert np.array_equal(solo(family, task(start=again)).latent, whole.latent)
    assert not np.array_equal(solo(family, task(seed=8)).latent, whole.latent)


def test_fresh_noise_makes_two_seeds_differ_and_one_seed_repeat(load: LoadFamily) -> None:
    events = drive(load(2), [(0, task(capture_steps=(2,)))])
    state = next(event for event in events if isinstance(event, LatentCaptured)).latent

    def drawn(share: float, seed: int) -> Finished:
        return solo(load(2), task(seed=seed, start=FromState(state, 2, share, noise_seed=seed)))

    assert np.array_equal(drawn(0.0, 1).latent, finished(events)["a"].latent)
    assert np.array_equal(drawn(0.0, 1).latent, drawn(0.0, 2).latent)
    assert np.array_equal(drawn(1.0, 1).latent, drawn(1.0, 1).latent)
    # different to the eye: tens of grey levels on average, more with a larger share
    apart = [
        np.abs(drawn(share, 1).pixels.astype(int) - drawn(share, 2).pixels.astype(int)).mean() for share in (0.2, 1.0)
    ]
    assert apart[0] > 2
    assert apart[1] > 2 * apart[0]


def test_from_a_picture_depends_on_it_the_seed_and_the_step(family: UNetFamily) -> None:
    picture = solo(family, task()).pixels
    drawn = {step: solo(family, task(seed=9, start=FromPicture(picture, step))) for step in (1, 9)}
    distance = {step: np.abs(d.pixels.astype(int) - picture.astype(int)).mean() for step, d in drawn.items()}
    assert drawn[9].steps_run == 1
    assert distance[9] < distance[1]
    again = solo(family, task(seed=9, start=FromPicture(picture, 1)))
    assert np.array_equal(again.latent, drawn[1].latent)
