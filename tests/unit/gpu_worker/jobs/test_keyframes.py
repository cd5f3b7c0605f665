"""Codec `keyframes`: what comes back, what it needs, and what it costs (FlexCache §4.1, §4.3)."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gpu_worker.engine.rows import Latent, first_noise
from services.gpu_worker.jobs.codecs import decode_run, decode_state, encode_run, encode_state, needed_by
from services.gpu_worker.jobs.keyframes import Keyframes, similarities, similarity
from shared.domain.errors import BlobCorruptError, ModelError

KS = (5, 10, 15, 20, 25)
SHAPE = (4, 16, 8, 8)
Run = dict[int, Latent]


def run_of(shape: tuple[int, ...], noises: int, motion: float, seed: int, ks: tuple[int, ...] = KS) -> Run:
    """Return states of a clip whose frames share `noises` noises in turn and differ by `motion` in what they show."""
    rng, (channels, frames, *sides) = np.random.default_rng(seed), shape
    noise = rng.standard_normal((channels, noises, *sides))[:, np.arange(frames) % noises]
    shown = rng.standard_normal((channels, 1, *sides)) + motion * rng.standard_normal(shape)
    return {k: ((1 - k / 50) * noise + k / 50 * shown).astype(np.float32) for k in ks}


def rows(latent: Latent) -> np.ndarray:
    return latent.swapaxes(0, 1).reshape(latent.shape[1], -1)


RUNS = st.builds(
    run_of,
    st.tuples(st.just(2), st.integers(1, 9), st.just(3), st.just(4)),
    st.integers(1, 9),
    st.sampled_from([0.0, 0.05, 0.3, 2.0]),
    st.integers(0, 99),
    st.sets(st.sampled_from(KS), min_size=1).map(lambda ks: tuple(sorted(ks))),
)
CODECS = st.builds(Keyframes, st.sampled_from([0.9, 0.99, 1.0]), st.sampled_from([0.0, 0.95, 0.995]))


@settings(max_examples=60)
@given(RUNS, CODECS)
def test_each_frame_comes_back_near_enough_or_as_it_was(run: Run, codec: Keyframes) -> None:
    coded = encode_run(run, codec)
    assert coded.keys() == run.keys()
    for k, latent in decode_run(coded).items():
        assert latent.shape == run[k].shape
        assert latent.dtype == np.float32
        half = rows(run[k].astype(np.float16).astype(np.float32))
        near = similarity(rows(latent), rows(run[k])) >= codec.least - 1e-4
        assert np.all(near | (rows(latent) == half).all(axis=1))


@settings(max_examples=20)
@given(RUNS, st.randoms())
def test_the_order_of_the_states_changes_nothing(run: Run, rng: object) -> None:
    ks = list(run)
    rng.shuffle(ks)  # type: ignore[attr-defined]
    assert encode_run({k: run[k] for k in ks}, Keyframes()) == encode_run(run, Keyframes())


def test_no_order_breaks_a_tie_between_bases() -> None:
    """Two frames that show the same: each step predicts the others equally well, but for rounding."""
    run = run_of((2, 2, 3, 4), 2, 0.0, 0, (5, 10, 15, 20))
    coded = encode_run(run, Keyframes())
    assert all(encode_run({k: run[k] for k in ks}, Keyframes()) == coded for ks in permutations(run))


@settings(max_examples=30)
@given(RUNS, st.floats(0, 1, exclude_max=True))
def test_a_part_of_a_blob_is_corrupt(run: Run, share: float) -> None:
    coded = encode_run(run, Keyframes(0.99, 0.0))
    for data, codec in coded.values():
        base = needed_by(data, codec)
        with pytest.raises(BlobCorruptError):
            decode_state(data[: int(share * len(data))], codec, coded[base.step][0] if base else b"")


def test_a_state_without_its_base_or_with_another_one_is_corrupt() -> None:
    coded, others = (encode_run(run_of(SHAPE, 16, 0.1, seed), Keyframes(0.99, 0.0)) for seed in (1, 2))
    first, *dependants = coded
    assert needed_by(*coded[first]) is None
    assert coded[first][1] == "keyframes"
    for k in dependants:
        data, codec = coded[k]
        base = needed_by(data, codec)
        assert base is not None
        assert (base.step, codec) == (first, f"keyframes@{first}")
        for other in (b"", others[next(iter(others))][0], coded[first][0][:-1]):
            with pytest.raises(BlobCorruptError, match=f"needs the blob of step {first}"):
                decode_state(data, codec, other)


def test_shared_noise_leaves_one_frame_per_noise_and_independent_noise_caps_near_four() -> None:
    """FlexCache's 16 times is FreeNoise's: 64 × 5 frames become 5 first frames and 15 differences."""
    codec = Keyframes(0.99, 0.0)
    for frames, noises, expected in ((64, 16, 64 * 5 / 20), (16, 16, 16 * 5 / 20)):
        run = run_of((4, frames, 8, 8), noises, 0.0, 3)
        parts = codec.split({k: rows(latent) for k, latent in run.items()})
        first = next(iter(parts.values()))
        assert frames * 5 / (sum(len(part.stored) for part in parts.values()) + len(first.common)) == expected
        size = sum(len(data) for data, _ in encode_run(run, codec).values())
        assert expected * size < 1.25 * sum(2 * latent.size for latent in run.values())  # frames of 512 bytes


def test_the_factor_is_the_least_squares_solution() -> None:
    parts = Keyframes(0.99, 0.0).split({k: rows(latent) for k, latent in run_of(SHAPE, 16, 0.2, 4).items()})
    run = {k: rows(latent) for k, latent in run_of(SHAPE, 16, 0.2, 4).items()}
    for k, part in parts.items():
        if part.base:
            wanted = (run[k][part.common] - run[k][0]).ravel()
            found = np.linalg.lstsq(part.differences.reshape(-1, 1), wanted, rcond=None)[0]
            assert part.alpha == pytest.approx(found[0], rel=1e-4)


def test_the_base_is_the_step_with_the_most_similar_predictions() -> None:
    run = run_of(SHAPE, 16, 0.5, 5)
    states, codec = {k: rows(latent) for k, latent in run.items()}, Keyframes(0.99, 0.0)
    found = {}
    for base in KS:
        difference = states[base][1:] - states[base][0]
        alphas = {k: ((one[1:] - one[0]) * difference).sum() / (difference**2).sum() for k, one in states.items()}
        found[base] = np.mean([similarity(x[0] + alphas[k] * difference, x[1:]).mean() for k, x in states.items()])
    assert next(iter(codec.split(states))) == max(found, key=lambda k: found[k])


def test_clips_of_one_frame_equal_frames_and_constant_frames() -> None:
    one, equal = run_of((4, 1, 8, 8), 1, 0.5, 6), run_of(SHAPE, 1, 0.0, 6)
    flat = {k: np.full(SHAPE, value, np.float32) for k, value in zip(KS, (0, 1, 0, -2, 3), strict=True)}
    for run in (one, equal, flat):
        coded = encode_run(run, Keyframes())
        assert {codec for _, codec in coded.values()} == {"keyframes"}  # nothing to predict: no state needs another
        for k, latent in decode_run(coded).items():
            np.testing.assert_array_equal(latent, run[k].astype(np.float16).astype(np.float32))
        assert max(len(data) for data, _ in coded.values()) < 4 * 8 * 8 * 2 + 64


def test_an_image_is_a_clip_of_one_frame() -> None:
    image = first_noise(1, (4, 8, 8)).numpy()
    kept = decode_state(encode_state(image, "keyframes"), "keyframes")
    np.testing.assert_array_equal(kept, image.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e6])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    run = run_of(SHAPE, 16, 0.1, 7)
    run[10][0, 3, 2, 1] = value
    with pytest.raises(ModelError, match="must have finite values"):
        encode_run(run, Keyframes())


def test_zeros_are_similar_to_zeros_alone() -> None:
    found = similarities(np.array([[0, 0], [0, 0], [1, 2], [2, 4]], np.float32))
    np.testing.assert_allclose(found, [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]], atol=1e-6)
