"""Clips start in every way that images start: from noise, from a latent, as an exact repeat, from a job's image."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from protos import common_pb2, gateway_pb2
from services.gateway.served_models import Models
from services.gateway.validation import validate
from services.gpu_worker.jobs.codecs import decode_png
from shared.domain.errors import InvalidRequestError
from shared.domain.types import PlanSource
from shared.models import of_images, served_cards
from tests import tiny_clips
from tests.flows.conftest import Make
from tests.flows.house import house


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_clips.build(tmp_path_factory.mktemp("models"), 10, tiny_clips.SMALL) / tiny_clips.CLIPS


async def test_a_clip_from_noise_then_from_its_latents_then_as_it_is(make: Make, clips: Path) -> None:
    async with house(make(video=str(clips), reuse_rules="paper", batch_invariant=2)) as home:
        first = await home.generate("a red fox runs", modality="video", seed=7)
        assert (first.plan.source, first.plan.model) == (PlanSource.NOISE, "clips")
        assert decode_png(first.png).shape == (4, 16, 16, 3)
        assert first.job.request.frames == 4
        again = await home.generate("a red fox runs", modality="video", seed=7)
        assert (again.plan.source, again.png) == (PlanSource.EXACT, first.png)
        near = await home.generate("a red fox runs", modality="video", seed=8)
        assert (near.plan.source, near.plan.entry_id) == (PlanSource.LATENT, first.job.id)
        longer = await home.generate("a red fox runs", modality="video", seed=7, seconds=1.5)
        assert (longer.plan.source, longer.job.request.frames) == (PlanSource.NOISE, 6)
        image = await home.generate("a red fox runs", seed=7)
        assert (image.plan.source, image.plan.model) == (PlanSource.NOISE, "large")
        begun = await home.generate(
            "a red fox", modality="video", seed=9, from_job=image.job.id, strength=0.5, cache="off"
        )
        assert (begun.plan.source, decode_png(begun.png).shape) == (PlanSource.IMAGE, (4, 16, 16, 3))
        with pytest.raises(InvalidRequestError, match=r"from_job: must be the job of an image \(got"):
            await home.client.generate("a red fox", from_job=first.job.id)
        both = await home.client.generate_images("a boat", 2, modality="video", seed=1, steps=4)
        assert len({decode_png(one.png).tobytes() for one in both}) == 2
        stub: Any = home.client._stub
        row = await stub.GetJob(gateway_pb2.GetJobRequest(job_id=first.job.id), timeout=5.0)
        assert (row.job.fps, row.picture) == (4.0, b"")


async def test_states_of_key_frames_start_later_clips_and_are_holes_without_their_base(make: Make, clips: Path) -> None:
    settings = make(video=str(clips), reuse_rules="paper", state_codec="keyframes", keyframe_least=0.0)
    async with house(settings) as home:
        first = await home.generate("a red fox runs", modality="video", seed=7)
        entry = await home.backends.catalog.entries.get(first.job.id)
        (base,) = (state for state in entry.latents if not state.needs)
        assert {state.needs for state in entry.latents if state != base} == {base.step}
        near = await home.generate("a red fox runs", modality="video", seed=8)
        assert (near.plan.source, near.plan.entry_id, near.plan.degraded) == (PlanSource.LATENT, entry.id, ())
        assert near.plan.state_codec.startswith("keyframes")
        assert decode_png(near.png).shape == (4, 16, 16, 3)
        await home.backends.blobs.delete([base.key])
        later = await home.generate("a red fox runs", modality="video", seed=9)
        assert decode_png(later.png).shape == (4, 16, 16, 3)
        assert later.plan.entry_id != entry.id
        async with asyncio.timeout(20):  # the cache receives that the base is gone
            while (await home.backends.catalog.entries.get(entry.id)).latents:
                await asyncio.sleep(0.02)


async def test_a_result_larger_than_half_a_message_is_read_in_parts(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make(video="noop:?name=clips", max_message_bytes=2**16)
    async with house(settings) as home:
        stub: Any = home.client._stub
        request = common_pb2.Request(
            prompt="a fox", modality="MODALITY_VIDEO", frames=12, width=256, height=256, steps=2
        )
        job = (await stub.Generate(gateway_pb2.GenerateRequest(request=request), timeout=20.0)).job
        assert job.picture_bytes > 2**15
        sizes, read = list[int](), home.backends.blobs.read

        async def counted(key: str, offset: int, length: int) -> bytes:
            sizes.append(length)
            return await read(key, offset, length)

        monkeypatch.setattr(home.backends.blobs, "read", counted)
        monkeypatch.delattr(type(home.backends.blobs), "get")  # no part reads the whole blob
        data = b""
        while len(data) < job.picture_bytes:
            asked = gateway_pb2.GetJobRequest(job_id=job.id, picture=True, offset=len(data))
            data += (await stub.GetJob(asked, timeout=5.0)).picture
        assert hashlib.sha256(data).hexdigest() == job.picture_sha256
        assert decode_png(data).shape == (12, 256, 256, 3)
        part = gateway_pb2.GetJobRequest(job_id=job.id, picture=True, offset=10, length=7)
        assert (await stub.GetJob(part, timeout=5.0)).picture == data[10:17]
        beyond = gateway_pb2.GetJobRequest(job_id=job.id, picture=True, offset=2**64 - 1)
        assert (await stub.GetJob(beyond, timeout=5.0)).picture == b""
        assert set(sizes) == {2**15, 7}
        assert (await home.client.get_picture(job.id)).png == data


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"frames": 13}, "frames: model 'clips' generates from 1 to 12"),
        ({"seconds": 9.0}, r"seconds: model 'clips' generates at most 3 s \(12 frames\)"),
        ({"frames": 0}, "frames: must be a whole number of at least 1"),
        ({"seconds": float("nan")}, "seconds: must be a number above 0"),
        ({"seconds": 1.0, "frames": 4}, "seconds: name frames or seconds, not both"),
        ({"frames": 8, "width": 64, "height": 64}, "frames × pixels × steps must be at most 300000"),
        ({"quality": "large"}, "quality: must be auto or clips"),
    ],
)
def test_a_clip_that_cannot_be_is_refused(make: Make, clips: Path, fields: dict[str, Any], said: str) -> None:
    settings = make(video=str(clips), max_pixel_steps=300_000)
    cards = served_cards(settings)
    models = Models(of_images(cards), large="large", video=cards["clips"])
    with pytest.raises(InvalidRequestError, match=said):
        validate(common_pb2.Request(prompt="x", modality="MODALITY_VIDEO", **fields), models, settings, "default")


async def test_without_a_video_model_a_clip_is_refused(make: Make) -> None:
    async with house(make()) as home:
        with pytest.raises(InvalidRequestError, match="modality: must be image, because no video model is set"):
            await home.client.generate("a red fox", modality="video")
        with pytest.raises(InvalidRequestError, match="frames: must be 1 for an image"):
            await home.client.generate("a red fox", frames=2)
