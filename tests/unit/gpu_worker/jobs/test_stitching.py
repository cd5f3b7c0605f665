"""Stitched latents are cell by cell those of the right state."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpu_worker.jobs.codecs import encode_state
from services.gpu_worker.jobs.stitching import mask_part, state_part, stitch
from shared.domain.errors import BlobCorruptError
from shared.domain.masks import pack

SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.integers(1, 6))


def drawn(shape: tuple[int, ...], seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    states = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    masks = (rng.random(shape[1:]) < 0.5 for _ in range(4))
    return (*states, *masks)


@given(SHAPES, st.integers(0, 999))
def test_each_cell_comes_from_the_right_state(shape: tuple[int, ...], seed: int) -> None:
    ours, theirs, thing, _, _, place = drawn(shape, seed)
    found = stitch(ours, theirs, thing, place)
    assert found.shape == shape
    assert found.dtype == np.float32
    for cell in np.ndindex(*shape):
        from_background = place[cell[1:]] and not thing[cell[1:]]
        assert found[cell] == (theirs if from_background else ours)[cell]


@given(SHAPES, st.integers(0, 999))
def test_masks_that_fit_leave_no_cell_to_choose(shape: tuple[int, ...], seed: int) -> None:
    """Where the other clip's background is all around the object, nothing else of either clip is seen."""
    ours, theirs, thing, *_ = drawn(shape, seed)
    found = stitch(ours, theirs, thing, ~thing)
    assert np.array_equal(found[:, thing], ours[:, thing])
    assert np.array_equal(found[:, ~thing], theirs[:, ~thing])
    assert np.array_equal(stitch(ours, ours, thing, ~thing), ours)
    everywhere = np.ones_like(thing)
    assert np.array_equal(stitch(ours, theirs, everywhere, everywhere), ours)
    assert np.array_equal(stitch(ours, theirs, ~everywhere, everywhere), theirs)


@given(SHAPES, st.integers(0, 999))
def test_an_image_is_a_clip_of_one_frame(shape: tuple[int, ...], seed: int) -> None:
    one = (shape[0], 1, *shape[2:])
    ours, theirs, thing, other, spare, place = drawn(one, seed)
    clip, image = stitch(ours, theirs, thing, place), stitch(ours[:, 0], theirs[:, 0], thing, place)
    assert np.array_equal(clip[:, 0], image)
    grid = one[1:]
    assert np.array_equal(mask_part(pack(thing, other), grid)[0], thing)
    assert np.array_equal(mask_part(pack(spare, place), grid)[1], place)
    for codec in ("fp32", "fp16"):
        found = state_part(encode_state(ours, codec), codec, one)
        assert np.allclose(found.latent, ours, atol=1e-2)
        assert found.noises == ()


def test_what_does_not_fit_is_damage() -> None:
    ours, theirs, thing, _, _, place = drawn((4, 2, 8, 8), 1)
    for states in ((ours, theirs[:, :1]), (ours[:, :1], theirs), (ours[:, 0], theirs[:, 0])):
        with pytest.raises(BlobCorruptError, match="must fit together"):
            stitch(*states, thing, place)
    with pytest.raises(BlobCorruptError, match="must fit together"):
        stitch(ours, theirs, thing, place[:1])
    with pytest.raises(BlobCorruptError, match="must have shape"):
        mask_part(pack(thing, place), (1, 8, 8))
    with pytest.raises(BlobCorruptError, match="must have shape"):
        state_part(encode_state(ours, "fp16"), "fp16", (4, 3, 8, 8))
