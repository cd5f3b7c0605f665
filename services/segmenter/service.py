"""Segments finished clips in the background, publishes their masks, and serves Segment for operators."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ClassVar

import grpc
from cachetools import LRUCache

from protos import segmenter_pb2 as pb
from protos import segmenter_pb2_grpc as pb_grpc
from services.segmenter.choice import check_segmenter, open_segmenter
from services.segmenter.masks import Grid, Unmasked, packed_masks
from services.segmenter.models import Segmenter
from shared.blobs import digest
from shared.domain.errors import (
    AfterimageError,
    BlobCorruptError,
    BlobMissingError,
    InvalidRequestError,
    ModelError,
    NotFoundError,
    UnreadableRowError,
)
from shared.domain.masks import Mask, mask_key, unpack
from shared.domain.messages import JobSucceeded, Message, VideoSegmented
from shared.domain.parts import Parts
from shared.domain.types import Job, JobState, Result
from shared.models.card_lookup import served_cards
from shared.models.devices import chosen_device, single_threaded
from shared.runtime import animated_png
from shared.runtime.audit import recorded
from shared.runtime.telemetry import METRICS, log
from shared.service import Context
from shared.service.door import actor_of

PAGE = 100
"""Jobs that one query of the catch-up lists."""
CATCH_UP_S = 60.0
"""Seconds between two looks for jobs that were missed, or whose blobs or masks could not be read or written."""
MOST_FAILURES = 3
"""Failures of the model on one clip after which the clip stays without masks."""
REMEMBERED = 10_000
"""Jobs whose published masks stay in memory, so that a repeated event computes nothing."""


class SegmenterService(pb_grpc.SegmenterServiceServicer):
    name: ClassVar[str] = "segmenter"
    ports: ClassVar[frozenset[str]] = frozenset({"catalog", "blobs", "bus"})
    needs: ClassVar[frozenset[str]] = frozenset({"catalog", "bus"})

    async def start(self, context: Context) -> None:
        """Check the model's name, subscribe, and look for clips that were missed; weights load with the first clip."""
        settings, self._backends = context.settings, context.backends
        self._settings = settings
        self._model: Segmenter | None = None
        self._load_at, self._unloadable = 0.0, ""
        self._thread = ThreadPoolExecutor(1, "segmenter", single_threaded, (settings.segmenter_threads,))
        self._waiting: asyncio.Queue[str] = asyncio.Queue()
        self._queued: set[str] = set()
        self._published: LRUCache[str, Mask] = LRUCache(REMEMBERED)
        self._failures: Counter[str] = Counter()
        self._tasks: list[asyncio.Task[None]] = []
        self._draining = False
        if settings.segmenter:
            await asyncio.to_thread(check_segmenter, settings.segmenter)
            cards = await asyncio.to_thread(served_cards, settings)
            self._grids = {name: Grid.of(card) for name, card in cards.items()}
            self._tasks = [asyncio.create_task(self._work()), asyncio.create_task(self._look_again())]
        # Replicas share one durable queue, in which events wait while none runs. Without a model, events are dropped.
        self._subscription = await self._backends.bus.subscribe([JobSucceeded], self.handle, queue=self.name)

    def register(self, server: grpc.aio.Server) -> str:
        pb_grpc.add_SegmenterServiceServicer_to_server(self, server)
        return pb.DESCRIPTOR.services_by_name["SegmenterService"].full_name

    async def drain(self) -> None:
        """Finish the clip in work, within `drain_s`; the catalog lists the others for the next start."""
        self._draining = True
        await self._subscription.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_s):
                await self._waiting.join()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    # ---- events ----

    async def handle(self, message: Message) -> None:
        if isinstance(message, JobSucceeded) and self._settings.segmenter:
            self._enqueue(message.job_id)

    def _enqueue(self, job_id: str) -> None:
        if job_id not in self._queued:
            self._queued.add(job_id)
            self._waiting.put_nowait(job_id)

    async def catch_up(self) -> None:
        """Queue the finished jobs that have parts, and neither masks nor a reason for having none."""
        after = ""
        while job_ids := await self._backends.catalog.jobs.to_segment(PAGE, after):
            for job_id in job_ids:
                self._enqueue(job_id)
            after = job_ids[-1]

    async def _look_again(self) -> None:
        while True:
            try:
                await self.catch_up()
            except AfterimageError as error:
                log(self.name).warning("missed clips not listed", error=str(error), again_in_s=CATCH_UP_S)
            await asyncio.sleep(CATCH_UP_S)

    async def _work(self) -> None:
        """Segment one clip after the other; `_look_again` brings back those that failed for now."""
        while True:
            job_id = await self._waiting.get()
            try:
                if not self._draining:
                    await self.segment(job_id)
            except AfterimageError as error:  # a server is away, a disk is full, or the model cannot be loaded
                log(self.name).warning("segmentation postponed", job=job_id, error=str(error))
            except Exception as error:  # the service must continue
                log(self.name).error("segmentation failed", job=job_id, error=repr(error), exc_info=error)
            finally:
                self._queued.discard(job_id)
                self._waiting.task_done()

    async def segment(self, job_id: str) -> None:
        """Store and publish the masks of a finished job; repeating this is safe, and does nothing for other jobs."""
        jobs = self._backends.catalog.jobs
        try:
            if not await jobs.awaits_masks(job_id):
                return
            job = await jobs.get(job_id)
        except (NotFoundError, UnreadableRowError):  # expired, or of another version, whose segmenter reads it
            return
        result, parts = job.result, job.plan.parts
        if result is None or parts is None or not parts.both:
            return
        mask = self._published.get(job_id)
        if mask is None or not await self._readable(mask):  # else the event was lost, or is not noted yet
            found = await self._masks_of(job, result, parts)
            if isinstance(found, Unmasked):
                await self._give_up(job_id, found)
                return
            mask = await self._store(job_id, found)
            METRICS.segmented.labels("masks").inc()
        await self._backends.bus.publish(VideoSegmented(job_id, mask.key, mask.sha256, mask.bytes))
        self._published[job_id] = mask
        self._failures.pop(job_id, None)

    async def _readable(self, mask: Mask) -> bool:
        try:
            await self._backends.blobs.get(mask.key, mask.sha256)
        except (BlobMissingError, BlobCorruptError):  # the maintainer dropped the masks that could not be read
            return False
        return True

    async def _masks_of(self, job: Job, result: Result, parts: Parts) -> bytes | Unmasked:
        if not result.captured:
            return Unmasked.NO_LATENTS
        if (grid := self._grids.get(result.model)) is None:
            return Unmasked.NO_GRID
        try:
            png = await self._backends.blobs.get(result.picture_key, result.picture_sha256)
            # the run's own frames are the last of a clip that continues another
            frames = (await asyncio.to_thread(animated_png.decode, png))[-job.request.frames :]
        except (BlobMissingError, BlobCorruptError):
            return Unmasked.NO_BLOB
        try:
            return await self._segmented(frames, parts, grid)
        except AfterimageError:
            raise
        except Exception as error:
            self._failures[job.id] += 1
            if self._failures[job.id] < MOST_FAILURES:
                raise
            log(self.name).error("segmentation model failed", job=job.id, error=repr(error), times=MOST_FAILURES)
            return Unmasked.FAILED

    async def _store(self, job_id: str, masks: bytes) -> Mask:
        sha256 = digest(masks)
        mask = Mask(mask_key(job_id, sha256), sha256, len(masks))
        await self._backends.blobs.put(mask.key, masks, durable=False)
        return mask

    async def _give_up(self, job_id: str, reason: Unmasked) -> None:
        """Note that the result has no masks, and why, so that no start tries again."""
        METRICS.segmented.labels(reason).inc()
        log(self.name).info("clip has no masks", job=job_id, reason=reason)
        await self._backends.catalog.jobs.note_unmasked(job_id, reason)
        self._failures.pop(job_id, None)

    async def _mask_of(self, job: Job) -> Mask | None:
        """Return the masks that the job or its entry names, which has the job's id."""
        if job.mask is not None:
            return job.mask
        entry = (await self._backends.catalog.entries.by_ids([job.id])).get(job.id)
        return None if entry is None else entry.mask

    async def _segmented(self, frames: animated_png.Frames, parts: Parts, grid: Grid) -> bytes | Unmasked:
        """Run the model on its own thread; load it there first.

        Raise ModelError if the weights cannot be loaded; loading is tried again after CATCH_UP_S."""

        def run() -> bytes | Unmasked:
            model, begun = self._loaded(), time.monotonic()
            shares = model.segment(frames, [parts.object, parts.background])
            METRICS.stage_seconds.labels("segment").observe(time.monotonic() - begun)
            return packed_masks(shares, grid, self._settings.segment_threshold)

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    def _loaded(self) -> Segmenter:
        if self._model is None:
            if time.monotonic() < self._load_at:
                raise ModelError(f"{self._unloadable}; loading is tried again every {CATCH_UP_S:g} s")
            try:
                self._model = open_segmenter(self._settings.segmenter, chosen_device(self._settings.segmenter_device))
            except Exception as error:
                self._load_at, self._unloadable = time.monotonic() + CATCH_UP_S, str(error)
                raise
        return self._model

    # ---- gRPC ----

    async def Segment(self, request: pb.SegmentRequest, context: Any) -> pb.SegmentResponse:
        target = f"job {request.job_id}" if request.job_id else request.video_key
        with recorded(self._settings.data_dir, actor=actor_of(context), action="segment", target=target):
            return await self._answer(request)

    async def _answer(self, request: pb.SegmentRequest) -> pb.SegmentResponse:
        if not self._settings.segmenter:
            raise ModelError("segmenter: no model is set; set AFTERIMAGE_SEGMENTER to a CLIPSeg, SAM 3 or pair")
        if bool(request.job_id) == bool(request.video_key):
            raise InvalidRequestError("job_id", "must be set if video_key is not, and only then", request.job_id)
        key, sha256, known, grid, mask, last = request.video_key, "", Parts(), Grid(), None, 0
        if request.job_id:
            job = await self._backends.catalog.jobs.get(request.job_id)
            if job.state is not JobState.SUCCEEDED or job.result is None:
                raise NotFoundError(f"job {job.id!r} has no result (it is {job.state}); wait until it has succeeded")
            key, sha256, last = job.result.picture_key, job.result.picture_sha256, job.request.frames
            known, mask = job.plan.parts or known, await self._mask_of(job)
            if job.result.model not in self._grids:
                raise ModelError(
                    f"job {job.id!r}: model {job.result.model!r} is not served here, so its latent grid is unknown"
                )
            grid = self._grids[job.result.model]
        parts = Parts(request.object or known.object, request.background or known.background)
        for name, phrase in (("object", parts.object), ("background", parts.background)):
            if not phrase:
                raise InvalidRequestError(name, "must be given, since the job's prompt names none", phrase)
        frames = (await asyncio.to_thread(animated_png.decode, await self._backends.blobs.get(key, sha256)))[-last:]
        found = await self._segmented(frames, parts, grid)
        stored = mask.key if mask is not None else ""
        if isinstance(found, Unmasked):
            return pb.SegmentResponse(mask_key=stored, reason=found)
        own, place = unpack(found)
        count, height, width = own.shape
        return pb.SegmentResponse(
            mask_key=stored, frames=count, width=width, height=height, mask=found,
            coverage=float(own.mean()), background_coverage=float(place.mean()),
        )  # fmt: skip
