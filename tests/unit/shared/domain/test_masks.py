"""Masks survive packing bit by bit, and nothing else is read as masks."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.errors import BlobCorruptError
from shared.domain.masks import MAGIC, mask_key, pack, unpack
from shared.service.pairing import KINDS, job_of

SHAPES = st.tuples(*(st.integers(1, 9) for _ in range(3)))


def drawn(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(shape) < 0.3


@given(SHAPES, st.integers(0, 99))
def test_both_masks_come_back(shape: tuple[int, ...], seed: int) -> None:
    thing, place = drawn(shape, seed), drawn(shape, seed + 1000)
    data = pack(thing, place)
    found = unpack(data)
    assert np.array_equal(found[0], thing)
    assert np.array_equal(found[1], place)
    assert pack(thing, place) == data


@given(SHAPES, st.data())
def test_damage_is_found(shape: tuple[int, ...], data: st.DataObject) -> None:
    whole = pack(drawn(shape, 1), drawn(shape, 2))
    at = data.draw(st.integers(0, len(whole) - 1))
    for damaged in (
        whole[:at],
        whole + b"\0",
        whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :],
    ):
        try:
            found = unpack(damaged, shape)
        except BlobCorruptError:
            continue
        # zlib's header has bits that change no content; anything else must be found
        assert np.array_equal(np.stack(found), np.stack(unpack(whole)))


def test_bits_that_belong_to_no_cell_are_damage() -> None:
    head = pack(np.ones((1, 1, 1), bool), np.ones((1, 1, 1), bool))[:16]
    assert unpack(head + zlib.compress(b"\xc0"))[0].all()
    for bits in (b"\xe0", b"\xc0\0", b""):
        with pytest.raises(BlobCorruptError, match="exactly 2 bits"):
            unpack(head + zlib.compress(bits))
    huge = MAGIC + b"\xff" * 12 + zlib.compress(b"\0" * 10)
    with pytest.raises(BlobCorruptError, match="at most"):
        unpack(huge)


def test_masks_of_another_shape_are_refused_before_they_take_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = pack(np.zeros((64, 512, 512), bool), np.zeros((64, 512, 512), bool))
    assert unpack(wide, (64, 512, 512))[0].shape == (64, 512, 512)
    monkeypatch.delattr(zlib, "decompressobj")  # nothing is inflated
    with pytest.raises(BlobCorruptError, match=r"shape \(16, 16, 16\) \(got \(64, 512, 512\)\)"):
        unpack(wide, (16, 16, 16))
    with pytest.raises(BlobCorruptError, match="at most"):  # fits in 2**31 bits, but not in these bytes
        unpack(MAGIC + struct.pack("<III", 64, 4096, 4096) + zlib.compress(b""))


def test_masks_of_two_shapes_or_without_frames_are_refused() -> None:
    for thing, place in (((2, 4, 4), (2, 4, 5)), ((4, 4), (4, 4)), ((0, 4, 4), (0, 4, 4))):
        with pytest.raises(ValueError, match=r"one shape \(F, h, w\)"):
            pack(np.zeros(thing, bool), np.zeros(place, bool))


def test_a_64_frame_clip_of_the_paper_has_at_most_its_40_kilobytes() -> None:
    """§4.3: two masks of 64 × 40 × 64 cells are 40 kB at one bit a cell."""
    assert len(pack(drawn((64, 40, 64), 1), drawn((64, 40, 64), 2))) <= 41_000
    still = np.zeros((64, 40, 64), bool)
    still[:, 10:30, 20:40] = True
    assert len(pack(still, ~still)) < 1_000


def test_the_key_names_job_and_content() -> None:
    key = mask_key("01JOB", "ab" * 32)
    assert key == "masks/01JOB-abababababababab.mask"
    assert job_of(key) == "01JOB"
    assert key.startswith(KINDS)
