"""The worker's handlers for gRPC, the engine's events, and the bus; `jobs/` carries out the tasks."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, ClassVar

import grpc

from protos import gpu_worker_pb2 as pb
from protos.gpu_worker_pb2_grpc import GpuWorkerServiceServicer, add_GpuWorkerServiceServicer_to_server
from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import BatchRan, Event
from services.gpu_worker.engine.family import Family
from services.gpu_worker.engine.runner import EngineThread
from services.gpu_worker.engine.threads import search
from services.gpu_worker.jobs.attempt import AttemptContext
from services.gpu_worker.jobs.keyframes import Keyframes
from services.gpu_worker.jobs.process import WorkerProcess
from services.gpu_worker.jobs.state_codecs import StateCodecs
from services.gpu_worker.jobs.tasks import Tasks
from services.gpu_worker.models.free_memory import pixel_limits
from services.gpu_worker.models.layout_profile import choices_of
from services.gpu_worker.models.measuring import load_warm
from services.gpu_worker.models.residency import Resident, placed_cards
from services.gpu_worker.models.step_profile import scheduler_of
from services.gpu_worker.models.switching import Assignment
from shared.domain.messages import DataErased, JobCancelled, Message, PreviewsRequested
from shared.models.devices import placed
from shared.models.memory import MOST_PIXELS
from shared.runtime.audit import recorded
from shared.runtime.telemetry import METRICS
from shared.service import Context
from shared.service.door import actor_of


class GpuWorkerService(GpuWorkerServiceServicer):
    """One device with its models, their lanes, and the batch that runs on it (docs/architecture.md, Services)."""

    name: ClassVar[str] = "gpu_worker"
    ports: ClassVar[frozenset[str]] = frozenset({"catalog", "blobs", "bus"})
    needs: ClassVar[frozenset[str]] = frozenset({"catalog", "bus"})

    def __init__(self, number: int = 1, process: WorkerProcess | None = None) -> None:
        """number: index of this worker in its process, from 1; the first answers for all of them over gRPC. process:
        the state that they share; None: this worker is the only one."""
        self._number, self._process = number, process or WorkerProcess()

    async def start(self, context: Context) -> None:
        settings, self._context, bus = placed(context.settings), context, context.backends.bus
        self.worker = f"{socket.gethostname()}-{os.getpid()}" + (f"-{self._number}" if self._number > 1 else "")
        cards = placed_cards(context.settings, alone=bus.process_local)
        profiles = context.backends.catalog.profiles
        load = partial(load_warm, settings=settings, choices=await choices_of(settings, profiles, cards.values()))
        self._models = Resident(cards, load, limit_bytes=settings.resident_bytes)
        self._tasks = Tasks(context, self.worker, self._process, lambda: self._place)
        self._assignment = Assignment(
            self.worker, bus, self._models, self._tasks.lanes, self._tasks.clip_lanes,
            max_rows=settings.max_rows, report_s=settings.report_s, mode=settings.monitor_mode,
        )  # fmt: skip
        self._device = (await self._assignment.load()).device
        if not settings.max_pixels:
            later = self._number - 1  # a process starts its workers in reverse order
            self._assignment.pixels = pixel_limits(settings, self._models, self._device, to_start=later)
        engine = Engine(
            self._models.families,
            max_rows=settings.max_rows,
            max_pixels=settings.max_pixels or min((*self._assignment.pixels.values(), MOST_PIXELS)),
            tell_every_s=1 / settings.progress_per_s,
            clock=context.clock.monotonic,
            threads=search(settings, self._device),
            scheduler=await scheduler_of(settings, profiles, cards.values()),
        )
        threads = 1 if settings.batch_invariant else settings.torch_threads
        self._thread = EngineThread(engine, self._hear, threads=threads)
        keyframes = Keyframes(settings.keyframe_similarity, settings.keyframe_least)
        self._codecs = StateCodecs(settings.state_codec, profiles, keyframes)
        self._draining = False
        self._subscription = await bus.subscribe([JobCancelled, PreviewsRequested, DataErased], self._on_wish)
        await self._assignment.begin(self._thread.serve)
        self._tasks.begin()

    def register(self, server: grpc.aio.Server) -> str | None:
        if self._number > 1:
            return None
        add_GpuWorkerServiceServicer_to_server(self, server)
        return pb.DESCRIPTOR.services_by_name["GpuWorkerService"].full_name

    async def drain(self, timeout_s: float | None = None) -> None:
        """Take no new task. Jobs that are not finished after `timeout_s` (default: settings.drain_s) return to their
        lanes, neither failed nor crashed."""
        timeout_s = self._context.settings.drain_s if timeout_s is None else timeout_s
        self._draining = True
        await self._assignment.end()
        await self._tasks.drain(timeout_s)

    async def stop(self) -> None:
        await self._tasks.stop()
        await self._subscription.close()
        await self._thread.stop()

    # ---- gRPC ----

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:
        return pb.DescribeResponse(
            worker=self.worker,
            device=str(self._device),
            models=[_loaded(family, self._assignment.step_s) for family in self._models.families.values()],
            rows=len(self._tasks.attempts),
            max_rows=self._context.settings.max_rows,
            draining=self._draining,
        )

    async def Drain(self, request: pb.DrainRequest, context: Any) -> pb.DrainResponse:
        endings = self._tasks.endings
        finished, handed_back = endings.finished, endings.handed_back
        with recorded(self._context.settings.data_dir, actor=actor_of(context), action="drain", target=self.name):
            await self.drain(request.timeout_s or None)
        return pb.DrainResponse(finished=endings.finished - finished, handed_back=endings.handed_back - handed_back)

    # ---- the engine ----

    def _hear(self, events: list[Event]) -> None:
        ran: list[BatchRan] = []
        for event in events:
            if isinstance(event, BatchRan):
                ran.append(event)
            elif (attempt := self._tasks.attempts.get(event.id)) is not None:
                attempt.hear(event)
        if ran:  # the metrics wait until after an image's Finished event is handled
            asyncio.get_running_loop().call_soon(self._count, ran)

    def _count(self, ran: Sequence[BatchRan]) -> None:
        for model in {event.model for event in ran}:
            rows, seconds = METRICS.batch_rows.labels(model), METRICS.step_seconds.labels(model)
            own = [event for event in ran if event.model == model]
            for event in own:
                rows.observe(event.rows)
                seconds.observe(event.seconds)
                self._assignment.count(model, event.rows, event.seconds)
            METRICS.steps_run.labels(model).inc(sum(event.rows for event in own))

    # ---- the bus ----

    async def _on_wish(self, fact: Message) -> None:
        if isinstance(fact, DataErased):
            self._context.backends.catalog.erasing.forget()
            for family in self._models.families.values():
                family.forget_prompts()
        if isinstance(fact, JobCancelled | PreviewsRequested):
            for attempt in self._tasks.attempts_at(fact.job_id):
                attempt.cancel() if isinstance(fact, JobCancelled) else attempt.send_previews()

    @property
    def _place(self) -> AttemptContext:
        """Context of an attempt that begins now. No other object keeps the models, so they can be unloaded later."""
        context, assignment = self._context, self._assignment
        return AttemptContext(
            context.settings, context.backends, context.clock, assignment.families, self._thread,
            self._codecs, assignment.preferred, assignment.duty.assigned,
        )  # fmt: skip


def _loaded(family: Family, step_s: Mapping[tuple[str, int], Collection[float]]) -> pb.LoadedModel:
    """step_s: seconds of the last steps by (model, rows)."""
    card = family.card
    return pb.LoadedModel(
        model=card.name,
        weights_hash=card.weights_hash,
        sampler=card.sampler_id,
        dtype=card.dtype,
        bytes=family.memory_bytes,
        step_s={rows: median(seconds) for (model, rows), seconds in step_s.items() if model == card.name},
    )
