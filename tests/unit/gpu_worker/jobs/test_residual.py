"""Codec `residual`: bytes, bounds, seeds across generations, and another random generator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gpu_worker.engine.noises import seed_of
from services.gpu_worker.engine.rows import FromCheckpoint, FromNoise, FromState, Start, carried_noises, first_noise
from services.gpu_worker.families import Family
from services.gpu_worker.jobs import residual
from services.gpu_worker.jobs.codecs import (
    decode_checkpoint,
    decode_state,
    encode_checkpoint,
    encode_state,
    noises_of,
)
from services.gpu_worker.jobs.residual_header import Header
from shared.domain.errors import BlobCorruptError, ConfigurationError, ModelError
from shared.domain.types import Plan, PlanSource
from tests.unit.gpu_worker.conftest import LoadFamily
from tests.unit.gpu_worker.engine.conftest import task
from tests.unit.gpu_worker.worker import STEPS, running_worker

FORMS = {"residual-2bit": 1, "residual-1bit": 1, "residual": 2, "residual-4x4": 4}
"""Side of a cell by codec."""
SIZES = {"residual-2bit": 271, "residual-1bit": 143, "residual": 111, "residual-4x4": 39}
"""Bytes of a 4×16×16 state with one 32-bit seed."""
STORED = bytes.fromhex("0129040606072d6f6f6e7100807680301b6361b04e371b96f0")
"""The state `mixed((4, 6, 6), {7: 0.75})`, as version 1 wrote it."""
NOWHERE = np.zeros((1, 1, 1), np.float32)


def mixed(shape: tuple[int, int, int], weights: dict[int, float]) -> np.ndarray:
    """Noise of some seeds over a coarse image of 4×4 cells."""
    drawn = sum(c * first_noise(seed, shape).numpy() for seed, c in weights.items())
    return (drawn + picture(shape)).astype(np.float32)


def picture(shape: tuple[int, int, int]) -> np.ndarray:
    coarse = np.random.default_rng(3).uniform(-1, 1, (shape[0], 1 + shape[1] // 4, 1 + shape[2] // 4))
    return coarse.repeat(4, axis=1).repeat(4, axis=2)[:, : shape[1], : shape[2]]


def averaged(values: np.ndarray, cell: int) -> np.ndarray:
    """Averages over cells, the plain way."""
    _, height, width = values.shape
    rows = [
        np.stack([values[:, y : y + cell, x : x + cell].mean(axis=(1, 2)) for x in range(0, width, cell)], axis=-1)
        for y in range(0, height, cell)
    ]
    return np.stack(rows, axis=1)


@pytest.mark.parametrize("codec", FORMS)
def test_a_clips_state_costs_no_more_than_its_frames_and_keeps_its_seeds(codec: str) -> None:
    shape = (4, 5, 10, 12)
    weights = {7: 0.75, 2**40: -0.5}
    noise = sum(c * first_noise(seed, shape).numpy() for seed, c in weights.items())
    clip = (noise + np.stack([picture((4, 10, 12)) * frame / 5 for frame in range(5)], axis=1)).astype(np.float32)
    data = encode_state(clip, codec, tuple(weights))
    assert noises_of(data, codec) == tuple(weights)
    kept = decode_state(data, codec)
    assert kept.shape == shape
    assert np.corrcoef((kept - noise).ravel(), (clip - noise).ravel())[0, 1] > 0.7
    assert len(data) < sum(len(encode_state(clip[:, frame], codec, tuple(weights))) for frame in range(5))
    for wrong in (data[:-1], data + b"x", bytes([9]) + data[1:]):
        with pytest.raises(BlobCorruptError):
            decode_state(wrong, codec)


@pytest.mark.parametrize("windows", [(0, 0), (6, 2)])
@pytest.mark.parametrize(("codec", "several"), [("residual-2x2x2", 2), ("residual-4x2x2", 4)])
@pytest.mark.parametrize("frames", [1, 4, 7])
def test_averages_over_frames_cost_less_and_are_the_frames_means(
    codec: str, several: int, windows: tuple[int, int], frames: int
) -> None:
    """A still clip loses nothing by them; the last average may cover fewer frames."""
    shape = (4, frames, 8, 12)
    noise = first_noise(7, shape, windows).numpy()
    clip = (0.8 * noise + picture((4, 8, 12))[:, None]).astype(np.float32)
    data, plain = encode_state(clip, codec, (7,), windows), encode_state(clip, "residual", (7,), windows)
    kept, each = decode_state(data, codec), decode_state(plain, "residual")
    assert kept.shape == shape
    assert noises_of(data, codec) == (7,)
    if frames > 1:
        assert len(data) < len(plain)
        assert data[0] == (4 if windows == (0, 0) else 5)
    assert np.square(kept - clip).mean() < 1.5 * np.square(each - clip).mean()
    rest = kept - np.float32(Header.read(data)[0].weights[7] / residual.C_UNIT) * noise
    for first in range(0, frames, several):
        block = rest[:, first : first + several]
        np.testing.assert_allclose(block, np.broadcast_to(block[:, :1], block.shape), atol=1e-5)
    image = clip[:, 0]
    assert encode_state(image, codec, (7,)) == encode_state(image, "residual", (7,))
    with pytest.raises(BlobCorruptError):
        decode_state(data[:-1], codec)


@pytest.mark.parametrize(("window", "stride"), [(6, 2), (4, 3), (3, 1)])
def test_a_long_clips_state_repeats_its_noise_as_the_run_did(window: int, stride: int) -> None:
    shape, windows = (4, 11, 8, 8), (window, stride)
    noise = first_noise(7, shape, windows).numpy()
    assert np.array_equal(noise[:, :window], first_noise(7, shape).numpy()[:, :window])
    for frame in range(window, 11):
        at = window + (frame - window) // stride * stride
        sources = [np.array_equal(noise[:, frame], noise[:, at - window + i]) for i in range(stride)]
        assert sum(sources) == 1
    state = np.float32(0.9) * noise
    data = encode_state(state, "residual", (7,), windows)
    assert noises_of(data, "residual") == (7,)
    assert np.square(decode_state(data, "residual") - state).mean() < 1e-3
    blind = encode_state(state, "residual", (7,))
    assert np.square(decode_state(blind, "residual") - state).mean() > 0.1
    for wrong in ((window, 0), (window, window + 1)):
        with pytest.raises(BlobCorruptError, match="stride must be from 1 to window"):
            decode_state(data.replace(bytes((8, 8, *windows)), bytes((8, 8, *wrong))), "residual")


@settings(max_examples=25)
@given(
    shape=st.tuples(st.integers(1, 16), st.integers(4, 40), st.integers(4, 40)),
    seeds=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=3, unique=True),
    scale=st.floats(0.05, 1.0),
)
@pytest.mark.parametrize(("codec", "cell"), FORMS.items())
def test_the_noise_comes_back_and_the_averages_with_their_energy(
    codec: str, cell: int, shape: tuple[int, int, int], seeds: list[int], scale: float
) -> None:
    state = mixed(shape, dict.fromkeys(seeds, scale))
    data = encode_state(state, codec, seeds)
    off = averaged(decode_state(data, codec) - state, cell)
    weights = Header.read(data)[0].weights
    noise = mixed(shape, {seed_of(one): c / residual.C_UNIT for one, c in weights.items()}) - picture(shape)
    rest = averaged(state - noise, cell)
    found = rest + off
    most = {"residual-1bit": 0.75, "residual-2bit": 0.5}.get(codec, 0.35)
    assert (off**2).mean() <= most**2 * (rest**2).mean()
    assert (found**2).mean() == pytest.approx((rest**2).mean(), rel=0.3)


@pytest.mark.parametrize(("codec", "size"), SIZES.items())
def test_a_small_state_has_the_bytes_that_the_layout_states(codec: str, size: int) -> None:
    seed = 2**32 - 1
    data = encode_state(mixed((4, 16, 16), {seed: 0.9}), codec, (seed,))
    assert len(data) == size
    assert noises_of(data, codec) == (seed,)


def test_a_state_that_version_1_wrote_stays_readable() -> None:
    state = mixed((4, 6, 6), {7: 0.75})
    np.testing.assert_allclose(decode_state(STORED, "residual"), state, atol=0.8)
    assert Header.read(STORED)[0].weights[7] == pytest.approx(0.75 * residual.C_UNIT, abs=8)


@pytest.mark.parametrize("codec", ["residual", "residual-4x4"])
def test_noise_fills_in_for_the_detail_that_averages_lose(codec: str) -> None:
    detail = np.random.default_rng(5).normal(0, 0.4, (4, 16, 16))
    state = (mixed((4, 16, 16), {7: 0.7}) + detail).astype(np.float32)
    found = Header.read(encode_state(state, codec, (7,)))[0].weights[7] / residual.C_UNIT
    assert found == pytest.approx(0.7 + residual.GAIN * 0.4, abs=0.08)
    full = encode_state(state, "residual-1bit", (7,))
    assert Header.read(full)[0].weights[7] / residual.C_UNIT == pytest.approx(0.7, abs=0.05)


def test_weights_of_two_noises_are_found_and_at_most_seven_seeds_stay() -> None:
    shares = {1: 0.8, 2**62: 0.4}
    found = Header.read(encode_state(mixed((4, 32, 32), shares), "residual", (*shares, *shares)))[0].weights
    assert {seed: c / residual.C_UNIT for seed, c in found.items()} == pytest.approx(shares, abs=0.04)
    many = {seed: 0.1 * seed for seed in range(1, 11)}
    assert noises_of(encode_state(mixed((4, 32, 32), many), "residual", tuple(many)), "residual") == tuple(range(4, 11))


@pytest.mark.parametrize("codec", FORMS)
def test_without_known_seeds_a_state_is_as_exact_as_int4(codec: str) -> None:
    state = mixed((4, 17, 23), {5: 1.0})
    data = encode_state(state, codec)
    assert noises_of(data, codec) == ()
    off, off_int4 = (decode_state(encode_state(state, one), one) - state for one in (codec, "int4"))
    assert (off**2).mean() < (off_int4**2).mean()
    assert len(data) < len(encode_state(state, "int4"))


def test_other_bytes_are_corrupt() -> None:
    whole = encode_state(mixed((4, 16, 16), {7: 0.9}), "residual", (7,))
    bad = [whole[:size] for size in range(len(whole))]
    bad += [whole + b"\0", bytes([2]) + whole[1:], whole[:2] + b"\0" + whole[3:], b"\x01" + b"\xff" * 40]
    for data in bad:
        with pytest.raises(BlobCorruptError, match="codec 'residual'"):
            decode_state(data, "residual")


def test_a_state_that_is_not_finite_is_not_stored() -> None:
    with pytest.raises(ModelError, match="finite"):
        encode_state(np.full((4, 8, 8), np.nan, np.float32), "residual")


def test_another_random_generator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_state(mixed((4, 16, 16), {7: 0.9}), "residual", (7,))
    monkeypatch.setattr(residual, "first_noise", lambda *drawn: -first_noise(*drawn))
    residual.is_same_generator.cache_clear()
    with pytest.raises(ConfigurationError, match="draws other noise"):
        decode_state(data, "residual")
    monkeypatch.undo()
    residual.is_same_generator.cache_clear()
    assert decode_state(data, "residual").shape == (4, 16, 16)


@pytest.mark.parametrize(
    ("start", "noises"),
    [
        (FromNoise(), (7,)),
        (FromState(NOWHERE, 2), ()),
        (FromState(NOWHERE, 2, 0.5, noise_seed=9), ()),
        (FromState(NOWHERE, 2, 1.0, noise_seed=9), (9,)),
        (FromState(NOWHERE, 2, 0.5, noise_seed=9, noises=(1, 2)), (1, 2, 9)),
        (FromState(NOWHERE, 2, noises=(1, 2)), (1, 2)),
        (FromCheckpoint(NOWHERE, 2, b"", (4, 5)), (4, 5)),
    ],
)
def test_what_noise_a_run_carries(family: Family, start: Start, noises: tuple[int, ...]) -> None:
    schedule = family.sampler.schedule(STEPS, (16, 16))
    assert carried_noises(task(start=start), schedule) == noises
    stochastic = replace(schedule, renewed=torch.full((STEPS,), 0.1))
    assert carried_noises(task(start=start), stochastic) == ()


def test_checkpoints_carry_the_seeds(load: LoadFamily) -> None:
    plan = Plan(PlanSource.NOISE, "large")
    latent = np.zeros((4, 4, 4), np.float32)
    assert decode_checkpoint(encode_checkpoint(latent, 3, b"x", plan, (7, 2**63 - 1)))[0].noises == (7, 2**63 - 1)


async def test_seeds_are_inherited_through_two_generations(tiny_folder: Path, tmp_path: Path) -> None:
    async with running_worker(tmp_path, str(tiny_folder / "large"), state_codec="residual") as bench:
        job, seeds = await bench.draw(seed=2**40), [2**40]
        for step, noise_seed in ((2, 98), (4, 99)):
            plan = bench.hit(await bench.cache(job), step, fresh_noise=0.6, noise_seed=noise_seed)
            job = await bench.draw(replace(plan, capture_steps=(4, 6)), seed=5)
            seeds.append(noise_seed)
            assert job.result is not None, job.error
            assert job.plan.degraded == ()
            for state in job.result.captured:
                data = await bench.blobs.get(state.key, state.sha256)
                assert state.codec == "residual"
                assert set(noises_of(data, "residual")) == set(seeds)
