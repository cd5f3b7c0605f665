"""States of stitched runs by codec `residual`: both seeds and their cells come back bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from services.gpu_worker.engine.noises import Noise, Within, noise_within, stitched_noises
from services.gpu_worker.engine.rows import first_noise
from services.gpu_worker.jobs.codecs import (
    decode_checkpoint,
    decode_state,
    encode_checkpoint,
    encode_state,
    noises_of,
)
from services.gpu_worker.jobs.residual_header import WITH_CELLS
from shared.domain.errors import BlobCorruptError
from shared.domain.types import Plan, PlanSource

SHAPE = (4, 3, 10, 9)
FORMS = ("residual-2bit", "residual", "residual-4x4", "residual-2x2x2")


def taken(seed: int = 0, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).random(shape[1:]) < 0.3


def stitched(shape: tuple[int, ...] = SHAPE, windows: tuple[int, int] = (0, 0)) -> tuple[np.ndarray, tuple[Noise, ...]]:
    """.75 of the noise of seed 7 in the taken cells, and of seed 2^40 in the others; and its noises."""
    cells = taken(shape=shape)
    ours, theirs = (first_noise(seed, shape, windows).numpy() for seed in (7, 2**40))
    return np.float32(0.75) * np.where(cells, ours, theirs), stitched_noises(cells.ravel(), (7,), (2**40,))


@pytest.mark.parametrize("codec", FORMS)
@pytest.mark.parametrize(("shape", "windows"), [(SHAPE, (0, 0)), ((4, 7, 8, 8), (4, 2)), ((4, 16, 16), (0, 0))])
def test_the_noise_of_both_runs_comes_back_bit_for_bit(
    codec: str, shape: tuple[int, ...], windows: tuple[int, int]
) -> None:
    noise, noises = stitched(shape, windows)
    data = encode_state(noise, codec, noises, windows)
    assert noises_of(data, codec) == noises
    assert np.array_equal(decode_state(data, codec), noise)  # nothing is left to average
    clip = noise + np.float32(0.1)
    data = encode_state(clip, codec, noises, windows)
    assert np.abs(decode_state(data, codec) - clip).max() < 0.1
    assert encode_state(clip, codec, noises_of(data, codec), windows) == data
    plain = encode_state(clip, codec, (), windows)  # as with unknown noises
    assert len(data) < len(plain)
    assert noises_of(plain, codec) == ()


def test_two_noises_that_share_the_cells_cost_one_mask() -> None:
    shape, half = (4, 8, 16, 16), np.zeros((8, 16, 16), bool)
    half[:, :, :7] = True
    one = np.where(half, first_noise(1, shape), first_noise(2, shape)).astype(np.float32)
    noises = stitched_noises(half.ravel(), (1,), (2,))
    plain = encode_state(first_noise(1, shape).numpy(), "residual", (1,))
    assert len(encode_state(one, "residual", noises)) - len(plain) < 60


def test_cells_of_several_generations() -> None:
    first, second = taken(1).ravel(), taken(2).ravel()
    once = stitched_noises(first, (1,), (2, 3))
    assert once == (noise_within(1, first), noise_within(2, ~first), noise_within(3, ~first))
    again = stitched_noises(second, once, (1, 4))
    assert again == (
        noise_within(1, first | ~second), noise_within(2, ~first & second), noise_within(3, ~first & second),
        noise_within(4, ~second),
    )  # fmt: skip
    assert stitched_noises(first, (5,), (5,)) == (5,)  # one run with itself
    assert stitched_noises(first, (), (5,)) == stitched_noises(first, (5,), ()) == ()
    assert stitched_noises(np.ones_like(first), (5,), (6,)) == (5,)


def test_the_noises_that_add_most_stay() -> None:
    """A seed in one cell is left out before a weaker one in all cells."""
    cells = np.zeros(SHAPE[1:], bool)
    cells[0, 0, 0] = True
    latent = sum(0.3 * first_noise(seed, SHAPE).numpy() for seed in range(1, 8))
    latent += np.where(cells, first_noise(9, SHAPE), 0)
    noises = (noise_within(9, cells.ravel()), *range(1, 8))
    assert noises_of(encode_state(latent.astype(np.float32), "residual", noises), "residual") == tuple(range(1, 8))


def test_other_bytes_are_corrupt() -> None:
    latent, noises = stitched()
    whole = encode_state(latent + np.float32(0.1), "residual", noises)
    assert whole[0] == 2 + WITH_CELLS
    bad: list[Any] = [whole[:size] for size in range(len(whole))]
    bad += [whole + b"\0", bytes([2]) + whole[1:], *(whole[:at] + b"\xff" + whole[at + 1 :] for at in range(20, 40))]
    for data in bad:
        with pytest.raises(BlobCorruptError, match="codec 'residual'"):
            decode_state(data, "residual")


def test_checkpoints_carry_the_cells() -> None:
    latent, noises = stitched()
    plan = Plan(PlanSource.STITCHED, "clips")
    for given in (noises, (3, *noises), (3,), ()):
        assert decode_checkpoint(encode_checkpoint(latent, 3, b"x", plan, given))[0].noises == given
    assert isinstance(noises[0], Within)
