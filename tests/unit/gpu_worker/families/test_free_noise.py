"""FreeNoise: clips longer than the adapter's window equal diffusers' own pipeline with `enable_free_noise`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch

from services.gpu_worker.engine.events import LatentCaptured
from services.gpu_worker.engine.row_start import make_row
from services.gpu_worker.engine.rows import FromState, first_noise
from services.gpu_worker.families import load_family
from services.gpu_worker.jobs.codecs import decode_state, encode_state, noises_of
from shared.domain.errors import ModelError
from shared.models import FrameRule, ModelCard, find_card
from tests.unit.gpu_worker.families.clip_reference import clip_of
from tests.unit.gpu_worker.families.conftest import drawn
from tests.unit.gpu_worker.families.test_clips import SIZE, WAYS, a_clip, events_of, one

WINDOW, STRIDE = 6, 2
RULE = FrameRule(default=6, most=40, window=WINDOW, stride=STRIDE)


@pytest.fixture(scope="module")
def card(saved: Callable[[str], Path]) -> ModelCard:
    return replace(find_card(str(saved("animatediff"))), frames=RULE)


@pytest.fixture(scope="module")
def family(card: ModelCard) -> Any:
    return load_family(card)


@pytest.fixture(scope="module")
def pipeline(card: ModelCard) -> Any:
    """diffusers' own, loaded and enabled by itself."""
    loaded = diffusers.AnimateDiffPipeline.from_pretrained(card.folder)
    loaded.set_progress_bar_config(disable=True)
    loaded.enable_free_noise(WINDOW, STRIDE)
    loaded.unet.eval()
    return loaded


@pytest.mark.parametrize("frames", [10, 11], ids=["whole windows", "a last window that overlaps more"])
@pytest.mark.parametrize("way", WAYS)
def test_a_long_clip_equals_the_pipeline_in_every_frame(family: Any, pipeline: Any, way: str, frames: int) -> None:
    task = a_clip(frames=frames, **WAYS[way])
    ours = drawn(family, task)["a"]
    assert ours.latent.shape[1] == frames
    np.testing.assert_allclose(ours.latent, clip_of(family, task, pipeline), atol=1e-4, rtol=0)


@pytest.mark.parametrize("frames", [1, 2, 5, WINDOW])
def test_a_clip_within_the_window_equals_the_pipeline_without_free_noise(family: Any, frames: int) -> None:
    task = a_clip(frames=frames, steps=3)
    np.testing.assert_allclose(drawn(family, task)["a"].latent, clip_of(family, task), atol=1e-4, rtol=0)


def test_noise_and_fresh_noise_repeat_alike(family: Any, pipeline: Any) -> None:
    shape = family.latent_shape(SIZE, 11)
    generator = torch.Generator().manual_seed(7)
    theirs = pipeline.prepare_latents(1, 4, 11, SIZE.height, SIZE.width, torch.float32, torch.device("cpu"), generator)[
        0
    ]
    assert torch.equal(make_row(family, a_clip(frames=11)).latent, theirs)
    assert torch.equal(first_noise(7, shape, (WINDOW, STRIDE)), theirs)
    state = first_noise(1, shape).numpy()
    starts = (FromState(state, 4, fresh_noise=1.0, noise_seed=seed) for seed in (3, 4))
    tasks = [a_clip(frames=11, start=start, capture_steps=(5,)) for start in starts]
    first, second = (one(LatentCaptured, events_of(family, task)) for task in tasks)
    fresh = [first_noise(seed, shape, (WINDOW, STRIDE)).numpy() for seed in (3, 4)]
    want = float(make_row(family, tasks[0]).schedule.left[4, 1]) * (fresh[0] - fresh[1])
    np.testing.assert_allclose(first.latent - second.latent, want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("batch_invariant", [0, 2])
def test_long_and_short_clips_share_the_batch(card: ModelCard, pipeline: Any, batch_invariant: int) -> None:
    family = load_family(card, batch_invariant=batch_invariant)
    crowd = [
        a_clip("long", frames=11, negative_prompt="blurry"),
        a_clip("short", frames=4, steps=4, seed=8),
        a_clip("alike", frames=11, steps=3, seed=9, guidance=1.0),
        a_clip("longer", frames=14, steps=2, seed=3),
    ]
    together = drawn(family, *crowd, at=(0, 1, 2, 1))
    for task in crowd:
        alone = drawn(family, task)[task.id].latent
        np.testing.assert_allclose(together[task.id].latent, alone, atol=1e-4, rtol=0)
        if batch_invariant:
            assert np.array_equal(together[task.id].latent, alone)
    np.testing.assert_allclose(together["long"].latent, clip_of(family, crowd[0], pipeline), atol=1e-4, rtol=0)


def test_a_long_clip_continues_from_its_states(family: Any) -> None:
    task = a_clip(frames=11, steps=10, capture_steps=(2,))
    state = one(LatentCaptured, events_of(family, task))
    resumed = drawn(family, replace(task, start=FromState(state.latent, 2)))["a"]
    np.testing.assert_allclose(resumed.latent, drawn(family, task)["a"].latent, atol=1e-5, rtol=0)
    data = encode_state(state.latent, "residual", state.noises, RULE.windows(11))
    kept, blind = decode_state(data, "residual"), encode_state(state.latent, "residual", state.noises)
    assert noises_of(data, "residual") == (7,)
    off = np.square(kept - state.latent).mean()
    assert off < 0.2 * np.square(state.latent).mean()
    assert off < np.square(decode_state(blind, "residual") - state.latent).mean() / 2


@pytest.mark.parametrize("frames", [FrameRule(6, 40, window=13), FrameRule(6, 13)])
def test_a_window_beyond_the_adapters_positions_is_refused(card: ModelCard, frames: FrameRule) -> None:
    with pytest.raises(ModelError, match=r"frames.window must be from 1 to 12, the positions of temporal attention"):
        load_family(replace(card, frames=frames))


@pytest.mark.parametrize("rule", [{"stride": 0}, {"stride": 7}, {"window": -1}])
def test_a_rule_without_windows_that_overlap_is_refused(card: ModelCard, rule: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="frames: window must be 0 or more, stride from 1 to window"):
        replace(card, frames=replace(RULE, **rule))
