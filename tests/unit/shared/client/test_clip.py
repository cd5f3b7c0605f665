"""Clips as a client gets them: whole, in parts, as a stream, and as files."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from protos import common_pb2, gateway_pb2
from services.gpu_worker.jobs.codecs import encode_png
from shared.client import AsyncClient, Clip, ImagesFailedError, Picture, Progress
from shared.domain.errors import BlobCorruptError, ConfigurationError, DeadlineError, InvalidRequestError
from shared.runtime.animated_png import Frames, decode
from tests.unit.shared.client.test_client import gateway

CLIP: Frames = np.random.default_rng(0).integers(0, 256, (5, 24, 32, 3), dtype=np.uint8)
DATA = encode_png(CLIP, 8.0)


def job(data: bytes = DATA, modality: Any = common_pb2.MODALITY_VIDEO, fps: float = 8.0) -> common_pb2.Job:
    request = common_pb2.Request(prompt="a fox", frames=5, modality=modality)
    known: dict[str, Any] = {"picture_bytes": len(data), "picture_sha256": hashlib.sha256(data).hexdigest(), "fps": fps}
    return common_pb2.Job(id="j1", state=common_pb2.JOB_STATE_SUCCEEDED, request=request, **known)


class Server:
    """A gateway that returns at most `part` bytes of a result in one message."""

    def __init__(self, part: int = 2**20, stored: bytes = DATA, **changes: Any) -> None:
        self._part, self._stored, self._job = part, stored, job(**changes)
        self.asked: list[common_pb2.Request] = []
        self.offsets: list[int] = []

    def _done(self, asked: common_pb2.Request) -> gateway_pb2.GenerateResponse:
        self.asked.append(asked)
        whole = self._stored if len(self._stored) <= self._part else b""
        return gateway_pb2.GenerateResponse(job=self._job, picture=whole)

    async def unary(self, request: bytes, context: Any) -> bytes:
        if request[2:4] == b"j1":  # the job id of a GetJobRequest
            asked = gateway_pb2.GetJobRequest.FromString(request)
            self.offsets.append(asked.offset)
            part = self._stored[asked.offset : asked.offset + self._part]
            return gateway_pb2.GetJobResponse(job=self._job, picture=part).SerializeToString()
        return self._done(gateway_pb2.GenerateRequest.FromString(request).request).SerializeToString()

    async def stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        asked = gateway_pb2.GenerateStreamRequest.FromString(request)
        assert asked.previews
        Made = gateway_pb2.GenerateStreamResponse
        yield Made(accepted=gateway_pb2.Accepted(job_id="j1")).SerializeToString()
        step = gateway_pb2.Progress(job_id="j1", step=1, steps=2, preview=encode_png(CLIP[:, ::4, ::4], 8.0))
        yield Made(progress=step).SerializeToString()
        yield Made(result=self._done(asked.request)).SerializeToString()


async def test_a_clip_has_its_frames_and_speed_and_is_asked_for_as_video() -> None:
    server = Server()
    async with gateway(unary=server.unary) as address, AsyncClient(address, retry_s=0.0) as client:
        clip = await client.generate_video("a fox", seconds=0.625, seed=3)
        assert isinstance(await client.get_picture("j1"), Clip)
    assert np.array_equal(clip.frames, CLIP)
    assert clip.frames is clip.frames  # decoded once
    assert (clip.fps, clip.job.request.frames, clip.job.id) == (8.0, 5, "j1")
    (asked, *_) = server.asked
    assert (asked.modality, asked.seconds, asked.HasField("frames")) == (common_pb2.MODALITY_VIDEO, 0.625, False)


async def test_a_large_clip_is_read_in_parts_and_checked() -> None:
    server = Server(part=len(DATA) // 3)
    async with gateway(unary=server.unary, stream=server.stream) as address, AsyncClient(address) as client:
        assert (await client.generate_video("a fox")).png == DATA
        assert server.offsets == [0, *(len(DATA) // 3 * part for part in range(1, len(server.offsets)))]
        assert (await client.get_picture("j1")).png == DATA
        *_, last = [event async for event in client.generate_stream("a fox", modality="video", previews=True)]
        assert isinstance(last, Clip)
        assert last.png == DATA
    for stored in (DATA[:-1] + b"x", DATA[:-1]):
        other = Server(part=100, stored=stored)
        async with gateway(unary=other.unary) as address, AsyncClient(address, retry_s=0.0) as client:
            with pytest.raises(BlobCorruptError, match="job j1: the parts of its result do not match its hash"):
                await client.generate_video("a fox")


async def test_one_unreadable_result_leaves_the_others() -> None:
    jobs = {name: job() for name in ("j1", "j2")}
    jobs["j2"].id = "j2"

    async def unary(request: bytes, context: Any) -> bytes:
        if (name := request[2:4].decode(errors="replace")) in jobs:  # the job id of a GetJobRequest
            offset = gateway_pb2.GetJobRequest.FromString(request).offset
            stored = DATA[:-1] + b"x" if name == "j1" else DATA
            return gateway_pb2.GetJobResponse(job=jobs[name], picture=stored[offset:]).SerializeToString()
        images = [gateway_pb2.Image(job=one) for one in jobs.values()]
        return gateway_pb2.GenerateResponse(images=images).SerializeToString()

    async def stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
        for index, one in enumerate(jobs.values()):
            result = gateway_pb2.GenerateResponse(job=one)
            yield gateway_pb2.GenerateStreamResponse(result=result, index=index).SerializeToString()

    async with gateway(unary=unary, stream=stream) as address, AsyncClient(address, retry_s=0.0) as client:
        with pytest.raises(ImagesFailedError) as failed:
            await client.generate_images("a fox", 2)
        events = list[Any]()
        with pytest.raises(ImagesFailedError) as ended:  # noqa: PT012 - the stream raises at its end
            async for event in client.generate_stream("a fox", n=2):
                events.append(event)
    for error in (failed.value, ended.value):
        assert [(one.job.id, one.png == DATA) for one in error.pictures] == [("j2", True)]
        assert isinstance(error.errors[0], BlobCorruptError)
    assert [event.job.id for event in events] == ["j2"]


async def test_the_parts_of_a_result_share_the_time_of_the_call() -> None:
    class Slow(Server):
        async def unary(self, request: bytes, context: Any) -> bytes:
            if request[2:4] == b"j1":
                await asyncio.sleep(0.1)
            return await super().unary(request, context)

    async with gateway(unary=Slow(part=len(DATA) // 40).unary) as address, AsyncClient(address) as client:
        with pytest.raises(DeadlineError):
            await client.generate_video("a fox", timeout_s=1.0)
        with pytest.raises(DeadlineError):
            await client.get_picture("j1", timeout_s=1.0)


async def test_previews_of_a_clip_are_animated() -> None:
    server = Server()
    async with gateway(stream=server.stream) as address, AsyncClient(address, retry_s=0.0) as client:
        events = [event async for event in client.generate_stream("a fox", modality="video", previews=True)]
    (step,) = [event for event in events if isinstance(event, Progress)]
    assert decode(step.preview).shape == (5, 6, 8, 3)


async def test_a_gateway_without_clips_is_named() -> None:
    server = Server(modality=common_pb2.MODALITY_IMAGE)
    async with gateway(unary=server.unary) as address, AsyncClient(address, retry_s=0.0) as client:
        assert type(await client.generate("a fox")) is Picture
        with pytest.raises(ConfigurationError, match="generates no clips"):
            await client.generate_video("a fox")


async def test_a_clip_is_saved_at_its_own_speed_or_another(tmp_path: Path) -> None:
    async with gateway(unary=Server().unary) as address, AsyncClient(address, retry_s=0.0) as client:
        clip = await client.generate_video("a fox")
    clip.save(tmp_path / "own.png")
    clip.save(tmp_path / "slow.png", fps=2, scale=2, resample="nearest")
    for name, duration, size in (("own.png", 125.0, (32, 24)), ("slow.png", 500.0, (64, 48))):
        with Image.open(tmp_path / name) as image:
            assert (image.info["duration"], image.size, image.info["job"]) == (duration, size, "j1")
            assert image.info["prompt"] == "a fox"
    assert np.array_equal(decode((tmp_path / "own.png").read_bytes()), CLIP)
    clip.save_poster(tmp_path / "poster.jpg", scale=2)
    clip.save_strip(tmp_path / "strip.png")
    with Image.open(tmp_path / "poster.jpg") as poster, Image.open(tmp_path / "strip.png") as strip:
        assert (poster.size, strip.size) == ((64, 48), (5 * 32, 24))
    with pytest.raises(InvalidRequestError, match="fps: must be a number"):
        clip.save(tmp_path / "never.png", fps=-1)


async def test_a_clip_whose_model_is_not_served_any_more_has_the_speed_of_its_file(tmp_path: Path) -> None:
    data = encode_png(CLIP, 24.0)
    for part in (2**20, len(data) // 2):
        server = Server(part, data, data=data, fps=0.0)
        async with gateway(unary=server.unary) as address, AsyncClient(address, retry_s=0.0) as client:
            clip = await client.get_picture("j1")
        assert isinstance(clip, Clip)
        assert clip.fps == 24.0
    assert isinstance(clip, Clip)
    clip.save(tmp_path / "fox.png")
    clip.save_poster(tmp_path / "poster.png")
    clip.save_strip(tmp_path / "strip.png")
    for name in ("fox.png", "poster.png", "strip.png"):
        with Image.open(tmp_path / name) as image:
            assert image.height == 24


async def test_a_gif_of_a_fast_model_plays_as_fast_as_a_gif_can(tmp_path: Path) -> None:
    async with gateway(unary=Server(fps=60.0).unary) as address, AsyncClient(address, retry_s=0.0) as client:
        clip = await client.generate_video("a fox")
    clip.save(tmp_path / "fox.gif")
    with Image.open(tmp_path / "fox.gif") as image:
        assert image.info["duration"] == 20
    with pytest.raises(InvalidRequestError, match="fps: must be at most 50 in a GIF"):
        clip.save(tmp_path / "fox.gif", fps=60.0)
