"""Bytes that leave the engine come back as what they were, or as a clear error."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from services.gpu_worker.jobs.codecs import (
    CODECS,
    decode_checkpoint,
    decode_png,
    decode_state,
    encode_checkpoint,
    encode_png,
    encode_state,
    fitted,
    preview_png,
)
from shared.domain.errors import BlobCorruptError, ConfigurationError
from shared.domain.types import Plan, PlanSource, Size


def latent(seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((4, 16, 24)) * scale).astype(np.float32)


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), scale=st.floats(1e-3, 50))
def test_codecs_are_as_exact_as_they_say(seed: int, scale: float) -> None:
    values = latent(seed, scale)
    peak = np.abs(values).max(axis=(1, 2), keepdims=True)
    assert np.array_equal(decode_state(encode_state(values, "fp32"), "fp32"), values)
    np.testing.assert_allclose(decode_state(encode_state(values, "fp16"), "fp16"), values, rtol=1e-3, atol=1e-6)
    for codec, levels in (("int8", 127), ("int6", 31), ("int4", 7)):
        off = np.abs(decode_state(encode_state(values, codec), codec) - values)
        assert (off <= peak / levels * 0.51).all()
    off = np.abs(decode_state(encode_state(values, "fp8"), "fp8") - values)
    assert (off <= np.maximum(np.abs(values) / 16, peak / 448 * 2.0**-9) * 1.01).all()  # half of three bits' last


def test_smaller_codecs_are_smaller() -> None:
    sizes = {codec: len(encode_state(latent(), codec)) for codec in CODECS}
    assert sizes["fp16"] < 0.6 * sizes["fp32"]
    assert sizes["int8"] < 0.7 * sizes["fp16"]
    assert sizes["int4"] < sizes["int6"] < sizes["fp8"] < sizes["int8"]


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_a_channel_of_zeros_survives(codec: str) -> None:
    values = latent()
    values[2] = 0
    kept = decode_state(encode_state(values, codec), codec)
    assert not kept[2].any()
    assert kept.dtype == np.float32


def test_fp8_holds_its_own_values_exactly() -> None:
    whole = np.array([448, -448, 0, 1.125, -0.0625, 2**-9], np.float32).reshape(1, 2, 3)
    assert np.array_equal(decode_state(encode_state(whole, "fp8"), "fp8"), whole)


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_bytes_that_are_no_state_are_corrupt(codec: str) -> None:
    whole = encode_state(latent(), codec)
    for data in (b"", b"not safetensors", whole[: len(whole) // 2], encode_png(np.zeros((4, 4, 3), np.uint8))):
        with pytest.raises(BlobCorruptError):
            decode_state(data, codec)


def test_a_state_that_is_not_finite_is_corrupt() -> None:
    values = latent()
    values[0, 0, 0] = np.inf
    with pytest.raises(BlobCorruptError, match="with finite values"):
        decode_state(encode_state(values, "fp32"), "fp32")


@pytest.mark.parametrize("codec", sorted(CODECS.keys() - {"keyframes"}))  # see test_keyframes
def test_a_clips_state_comes_back_as_near_as_its_frames(codec: str) -> None:
    clip = np.stack([latent(seed) for seed in range(5)], axis=1)
    clip[2] = 0
    kept = decode_state(encode_state(clip, codec), codec)
    assert kept.shape == clip.shape
    assert kept.dtype == np.float32
    assert not kept[2].any()
    frames = [decode_state(encode_state(clip[:, frame], codec), codec) for frame in range(5)]
    alone = np.square(np.stack(frames, axis=1) - clip).mean()
    assert np.square(kept - clip).mean() <= 1.001 * alone


@pytest.mark.parametrize("shape", [(16, 24), (1, 4, 5, 16, 24)])
def test_a_state_of_another_number_of_sides_is_corrupt(shape: tuple[int, ...]) -> None:
    with pytest.raises(BlobCorruptError, match=r"must be \(C, h, w\) or \(C, F, h, w\)"):
        decode_state(encode_state(np.ones(shape, np.float32), "fp32"), "fp32")


def test_checkpoints_of_clips_are_lossless() -> None:
    clip, plan = np.stack([latent(1), latent(2)], axis=1), Plan(source=PlanSource.NOISE, model="large")
    start, _ = decode_checkpoint(encode_checkpoint(clip, 12, b"generator", plan, (7,), previous=-clip))
    assert np.array_equal(start.latent, clip)
    assert start.previous is not None
    assert np.array_equal(start.previous, -clip)


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(ConfigurationError, match="'mp3'"):
        encode_state(latent(), "mp3")


def test_checkpoints_are_lossless() -> None:
    plan = Plan(source=PlanSource.LATENT, model="large", start_step=5, degraded=("blobs: gone",))
    start, planned = decode_checkpoint(encode_checkpoint(latent(), 12, bytes(range(256)) * 3, plan))
    assert planned == plan
    assert start.step == 12
    assert np.array_equal(start.latent, latent())
    assert start.generator_state == bytes(range(256)) * 3
    assert start.previous is None
    with pytest.raises(BlobCorruptError):
        decode_checkpoint(encode_state(latent(), "fp32"))


def test_a_checkpoint_carries_the_history_of_a_multistep_sampler() -> None:
    plan = Plan(source=PlanSource.NOISE, model="large")
    start, _ = decode_checkpoint(encode_checkpoint(latent(), 12, b"generator", plan, previous=latent(1)))
    assert start.previous is not None
    assert np.array_equal(start.previous, latent(1))


def test_pictures_survive_png_and_garbage_does_not() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    assert np.array_equal(decode_png(encode_png(pixels)), pixels)
    assert encode_png(pixels) == encode_png(pixels.copy())
    for data in (b"", b"GIF89a", encode_png(pixels)[:60]):
        with pytest.raises(BlobCorruptError):
            decode_png(data)


def test_an_image_of_absurd_size_is_corrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_png(np.zeros((20, 30, 3), np.uint8))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200)
    with pytest.raises(BlobCorruptError, match="exceeds limit of 400 pixels"):
        decode_png(data)


def clip_of(frames: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (frames, 20, 30, 3), dtype=np.uint8)


def test_clips_survive_as_animated_pngs_frame_by_frame() -> None:
    clip = clip_of(6)
    clip[2:5] = clip[1]  # frames that stand still are frames too
    clip[5] = clip[4]
    clip[5, 3:9, 4:11] = 7
    data = encode_png(clip, 24.0)
    assert np.array_equal(decode_png(data), clip)
    assert data == encode_png(clip.copy(), 24.0)
    with Image.open(io.BytesIO(data)) as animation:
        assert animation.format == "PNG"
        assert animation.info["duration"] == pytest.approx(1000 / 24)
        assert animation.info["loop"] == 0  # without end
        assert np.array_equal(np.asarray(animation.convert("RGB")), clip[0])  # all that a viewer of images shows
    still = np.zeros_like(clip)
    assert np.array_equal(decode_png(encode_png(still)), still)
    with pytest.raises(BlobCorruptError):
        decode_png(data[: len(data) // 2])


def test_a_long_clips_preview_plays_as_long_as_the_clip() -> None:
    for frames, shown in ((16, 16), (40, 14), (64, 16)):
        with Image.open(io.BytesIO(preview_png(clip_of(frames), 8.0))) as animation:
            assert getattr(animation, "n_frames") == shown  # noqa: B009 - missing in the stubs
            assert animation.info["duration"] == 125 * -(-frames // 16)
    assert decode_png(preview_png(clip_of(1)[0], 8.0)).shape == (20, 30, 3)


def test_each_frame_of_a_clip_is_cropped_and_scaled_as_an_image() -> None:
    clip = clip_of(3)
    small = fitted(clip, Size(16, 16))
    assert small.shape == (3, 16, 16, 3)
    assert np.array_equal(small[1], fitted(clip[1], Size(16, 16)))
    assert fitted(clip, Size(30, 20)) is clip
