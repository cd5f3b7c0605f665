"""The segmenter on the real in-process ports, with a tiny CLIPSeg: beside the maintainer, killed, and asked by gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protos import cache_maintainer_pb2 as maintainer_pb
from protos import segmenter_pb2 as pb
from protos.cache_maintainer_pb2_grpc import CacheMaintainerServiceStub
from protos.segmenter_pb2_grpc import SegmenterServiceStub
from services.cache_maintainer.service import CacheMaintainerService
from services.segmenter import service as module
from services.segmenter.service import SegmenterService
from shared.domain.errors import BlobUnavailableError, InvalidRequestError, ModelError
from shared.domain.masks import Mask, unpack
from shared.domain.messages import JobSucceeded, Message, VideoSegmented
from shared.domain.parts import Parts
from shared.domain.types import Job, Modality, Plan, PlanSource, vector_bytes
from shared.runtime import animated_png, audit, rpc
from shared.runtime.settings import Settings
from shared.service import running
from shared.service.backends import Backends
from tests.tiny_segmenters import tiny_clipseg
from tests.unit.cached import MODEL, finished_job, request, unit
from tests.unit.facts import heard

FRAMES, SIDE = 3, 64
PARTS = Parts("a red fox", "in the snow")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_clipseg(tmp_path_factory.mktemp("clipseg"))


@pytest.fixture
def small(settings: Settings, model: Path) -> Settings:
    """Random weights are unsure of everything: with threshold 0 each pixel goes to the more probable phrase."""
    return settings.model_copy(update={"large": MODEL, "segmenter": str(model), "segment_threshold": 0.0})


def clip(seed: int = 0, frames: int = FRAMES) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (frames, SIDE, SIDE, 3), dtype=np.uint8)
    return animated_png.encode([Image.fromarray(one) for one in pixels])


@dataclass
class House:
    service: SegmenterService
    backends: Backends
    stub: SegmenterServiceStub
    maintainer: CacheMaintainerServiceStub
    events: list[VideoSegmented]

    async def finish(
        self, parts: Parts | None = PARTS, picture: bytes = b"", frames: int = FRAMES, steps: Sequence[int] = (5, 10)
    ) -> Job:
        asked = replace(request("a red fox in the snow"), modality=Modality.VIDEO, frames=frames)
        plan = Plan(PlanSource.NOISE, "noop", parts=parts)
        vector = vector_bytes(unit(2)) if parts is not None and parts.both else b""
        picture = picture or clip()
        job = await finished_job(self.backends, asked, unit(1), picture=picture, plan=plan, parts=vector, steps=steps)
        await self.backends.bus.publish(JobSucceeded(job.id, 1))
        await self.settle()
        return job

    async def settle(self) -> None:
        await heard(self.backends.bus)
        async with asyncio.timeout(60):
            await self.service._waiting.join()
        await heard(self.backends.bus)

    async def mask(self, job_id: str) -> Mask | None:
        return await self.service._mask_of(await self.backends.catalog.jobs.get(job_id))

    async def masks(self) -> list[str]:
        return [blob.key async for blob in self.backends.blobs.list("masks/")]


@contextlib.asynccontextmanager
async def house(settings: Settings) -> AsyncIterator[House]:
    service = SegmenterService()
    async with running([service, CacheMaintainerService()], settings) as process:
        events: list[VideoSegmented] = []

        async def hear(message: Message) -> None:
            assert isinstance(message, VideoSegmented)
            events.append(message)

        backends = process.context.backends
        await backends.bus.subscribe([VideoSegmented], hear)
        segmenter, maintainer = (process.context.channel(name) for name in ("segmenter", "cache_maintainer"))
        yield House(service, backends, SegmenterServiceStub(segmenter), CacheMaintainerServiceStub(maintainer), events)


async def test_a_finished_clip_gets_masks_that_its_entry_names(small: Settings) -> None:
    async with house(small) as it:
        job = await it.finish()
        (event,) = it.events
        assert event.job_id == job.id
        data = await it.backends.blobs.get(event.mask_key, event.sha256)
        assert len(data) == event.bytes
        own, place = unpack(data)
        assert own.shape == place.shape == (FRAMES, SIDE // 4, SIDE // 4)
        assert own.any()
        assert place.any()
        assert await it.mask(job.id) == Mask(event.mask_key, event.sha256, event.bytes)
        assert await it.backends.catalog.jobs.to_segment() == []


async def test_a_repeated_event_changes_nothing(small: Settings) -> None:
    async with house(small) as it:
        job = await it.finish()
        for _ in range(2):
            await it.backends.bus.publish(JobSucceeded(job.id, 1))
            await it.settle()
        assert len(it.events) == len(await it.masks()) == 1


@pytest.mark.parametrize("parts", [None, Parts(), Parts("a red fox", ""), Parts("", "in the snow")])
async def test_a_clip_without_both_parts_is_skipped(small: Settings, parts: Parts | None) -> None:
    async with house(small) as it:
        job = await it.finish(parts)
        assert it.events == []
        assert it.service._model is None  # no weights were loaded
        assert (await it.backends.catalog.jobs.get(job.id)).mask is None
        assert await it.backends.catalog.jobs.to_segment() == []


async def test_a_phrase_that_is_not_found_is_noted_and_not_tried_again(small: Settings) -> None:
    async with house(small.model_copy(update={"segment_threshold": 1.0})) as it:
        await it.finish()
        assert it.events == []
        assert await it.masks() == []
        assert await it.backends.catalog.jobs.to_segment() == []


async def test_a_clip_without_latents_is_not_segmented(small: Settings) -> None:
    async with house(small) as it:
        await it.finish(steps=())
        assert it.service._model is None
        assert await it.backends.catalog.jobs.to_segment() == []


async def test_a_corrupt_clip_is_noted_and_not_tried_again(small: Settings) -> None:
    async with house(small) as it:
        await it.finish(picture=clip()[:-40])
        assert it.events == []
        assert await it.backends.catalog.jobs.to_segment() == []


async def test_a_killed_segmenter_finds_at_its_start_what_it_missed(small: Settings) -> None:
    async with house(small.model_copy(update={"segmenter": ""})) as it:
        missed = await it.finish()
        assert it.events == []
        assert await it.backends.catalog.jobs.to_segment() == [missed.id]
    async with house(small) as it:
        async with asyncio.timeout(60):
            while not await it.mask(missed.id):
                await asyncio.sleep(0.02)
        assert [event.job_id for event in it.events] in ([], [missed.id])  # the start may be before the test listens
        assert await it.backends.catalog.jobs.to_segment() == []


async def test_a_lost_event_is_published_again_without_computing(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(small) as it:
        with monkeypatch.context() as patched:
            patched.setattr(it.backends.catalog.entries, "note_mask", _never)
            job = await it.finish()
            assert await it.mask(job.id) is None
        it.service._model = None
        monkeypatch.setattr(module, "open_segmenter", None)
        await it.service.catch_up()
        await it.settle()
        assert it.events[0] == it.events[1]
        assert await it.mask(job.id) is not None


async def _never(*_: object) -> bool:
    return True


async def test_a_store_that_is_away_postpones_the_clip(small: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    async with house(small) as it:
        with monkeypatch.context() as patched:
            patched.setattr(it.backends.blobs, "put", _away)
            job = await _finished_while(it)
        assert await it.backends.catalog.jobs.to_segment() == [job.id]
        await it.service.catch_up()
        await it.settle()
        assert await it.mask(job.id) is not None


async def _away(*_: object, **__: object) -> str:
    raise BlobUnavailableError("the store is away; wait")


async def _finished_while(it: House) -> Job:
    """A finished job whose own blobs are stored, although the store takes no more."""
    put = type(it.backends.blobs).put.__get__(it.backends.blobs)
    away, it.backends.blobs.put = it.backends.blobs.put, put  # type: ignore[method-assign]
    asked = replace(request("a red fox in the snow"), modality=Modality.VIDEO, frames=FRAMES)
    plan = Plan(PlanSource.NOISE, "noop", parts=PARTS)
    job = await finished_job(it.backends, asked, unit(1), picture=clip(), plan=plan, parts=vector_bytes(unit(2)))
    it.backends.blobs.put = away  # type: ignore[method-assign]
    await it.backends.bus.publish(JobSucceeded(job.id, 1))
    await it.settle()
    return job


async def test_a_model_that_fails_on_a_clip_again_and_again_gives_it_up(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(*_: object) -> None:
        raise RuntimeError("out of memory")

    async with house(small) as it:
        monkeypatch.setattr(it.service, "_segmented", failing)
        job = await it.finish()
        for left in ([job.id], []):
            await it.service.catch_up()
            await it.settle()
            assert await it.backends.catalog.jobs.to_segment() == left


async def test_a_purged_clip_gets_no_masks_again(small: Settings) -> None:
    async with house(small) as it:
        job = await it.finish()
        async with asyncio.timeout(10):
            while not await it.backends.catalog.entries.by_ids([job.id]):
                await asyncio.sleep(0.02)
        await rpc.call(it.maintainer.Purge, maintainer_pb.PurgeRequest(entry_id=job.id), timeout_s=10)
        it.service._published.clear()
        assert await it.backends.catalog.jobs.to_segment() == []
        await it.backends.bus.publish(JobSucceeded(job.id, 1))
        await it.settle()
        assert len(it.events) == 1


async def test_weights_that_cannot_be_loaded_are_not_read_again_for_each_clip(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = list[str]()

    def broken(name: str, _: object) -> None:
        tried.append(name)
        raise ModelError("segmenter: its weights are torn")

    async with house(small) as it:
        with monkeypatch.context() as patched:
            patched.setattr(module, "open_segmenter", broken)
            jobs = [(await it.finish()).id for _ in range(3)]
            assert len(tried) == 1
            assert await it.backends.catalog.jobs.to_segment() == jobs
        it.service._load_at = 0.0
        await it.service.catch_up()
        await it.settle()
        assert [await it.mask(one) is not None for one in jobs] == [True] * 3


async def test_a_continued_clip_is_segmented_in_its_own_frames(small: Settings) -> None:
    async with house(small) as it:
        await it.finish(picture=clip(frames=5), frames=2)
        own, _ = unpack(await it.backends.blobs.get(it.events[0].mask_key))
        assert len(own) == 2


async def test_operators_ask_by_job_and_by_blob(small: Settings) -> None:
    async with house(small) as it:
        job = await it.finish()
        reply = await rpc.call(it.stub.Segment, pb.SegmentRequest(job_id=job.id), timeout_s=30)
        assert (reply.frames, reply.width, reply.height) == (FRAMES, SIDE // 4, SIDE // 4)
        assert reply.mask_key == it.events[0].mask_key
        own, place = unpack(reply.mask)
        assert (reply.coverage, reply.background_coverage) == pytest.approx((own.mean(), place.mean()))
        assert job.result is not None
        by_key = pb.SegmentRequest(video_key=job.result.picture_key, object="a duck", background="on a beach")
        reply = await rpc.call(it.stub.Segment, by_key, timeout_s=30)
        assert (reply.frames, reply.width, reply.height, reply.mask_key) == (FRAMES, SIDE, SIDE, "")
        for wrong in (pb.SegmentRequest(), pb.SegmentRequest(video_key="pictures/a", object="a duck")):
            with pytest.raises(InvalidRequestError):
                await rpc.call(it.stub.Segment, wrong, timeout_s=30)
    lines = [json.loads(line) for line in (small.data_dir / audit.FILE).read_text().splitlines()]
    assert [(line["action"], line["target"], line["outcome"]) for line in lines] == [
        ("segment", f"job {job.id}", "done"),
        ("segment", job.result.picture_key, "done"),
        ("segment", "", "INVALID_ARGUMENT"),
        ("segment", "pictures/a", "INVALID_ARGUMENT"),
    ]


async def test_a_name_of_no_model_fails_at_the_start_and_none_says_so(small: Settings, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="AFTERIMAGE_SEGMENTER"):
        async with house(small.model_copy(update={"segmenter": str(tmp_path / "nothing")})):
            pass
    async with house(small.model_copy(update={"segmenter": ""})) as it:
        with pytest.raises(ModelError, match="AFTERIMAGE_SEGMENTER"):
            await rpc.call(it.stub.Segment, pb.SegmentRequest(video_key="pictures/a"), timeout_s=30)
