"""One attempt at one job: from its plan through the engine to a stored image, with events on the way."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from services.gpu_worker.engine.events import Advanced, Checkpointed, Event, Finished, Joined, LatentCaptured, Left
from services.gpu_worker.engine.family import Family
from services.gpu_worker.engine.rows import FromCheckpoint, Pixels, Task
from services.gpu_worker.engine.runner import EngineThread
from services.gpu_worker.jobs.codecs import INLINE_BYTES, preview_png
from services.gpu_worker.jobs.crash_evidence import CRASHES_TOGETHER
from services.gpu_worker.jobs.outputs import Outputs
from services.gpu_worker.jobs.plan_resolution import prepare
from services.gpu_worker.jobs.state_codecs import StateCodecs
from shared.blobs.ahead import ReadAhead
from shared.domain.errors import AfterimageError, CancelledError
from shared.domain.messages import Progress, StateUsed
from shared.domain.types import PICTURE_STEP, Job, Plan, PlanSource, Result, Timings
from shared.models import ModelCard
from shared.runtime import tracing
from shared.runtime.clock import Clock
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS, log
from shared.service.backends import Backends

FIRST_S = 0.1
"""Seconds of generation before the first `Progress` is published."""
CACHED = (PlanSource.LATENT, PlanSource.IMAGE, PlanSource.STITCHED)
"""Sources whose first steps an earlier job ran."""


@dataclass(frozen=True)
class AttemptContext:
    """The settings, ports and models that every attempt of this worker uses."""

    settings: Settings
    backends: Backends
    clock: Clock
    families: Mapping[str, Family]
    """Families by model name; the first one generates misses."""
    engine: EngineThread
    codecs: StateCodecs
    preferred: tuple[str, ...] = ()
    """Models to prefer for plans that several models may run."""
    assigned: frozenset[str] | None = None
    """Models that some worker runs; None: unknown, so any model may have a worker."""

    @property
    def card(self) -> ModelCard:
        """The card of the first family."""
        return next(iter(self.families.values())).card


class ElsewhereError(AfterimageError):
    """Only a model that this worker has not loaded may run the plan."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(f"the plan needs model {plan.model!r}, which this worker has not loaded")
        self.plan = plan


class Attempt:
    """A claimed job that this worker holds."""

    def __init__(self, place: AttemptContext, job: Job, ahead: ReadAhead, *, previews: bool = False) -> None:
        """ahead: the read of the blob that the task named, started before the claim."""
        self.job = job
        self._ahead, self._previews = ahead, previews
        self.id = f"{job.id}-{job.attempt}"
        """Id of the attempt in the engine: after a suspend this worker may hold two attempts at one job."""
        self.unheard = False
        """True if the catalog did not answer the last renewal of the lease."""
        room = place.settings.capture_fp16_states
        self.outputs = Outputs(place.backends, job, place.codecs, fp16_states=room)
        self.plan = job.plan
        self._place = place
        self._card = place.families[job.plan.model].card if job.plan.model in place.families else place.card
        """Card of the model that runs the plan; settled by `prepare`."""
        self._ended: asyncio.Future[Finished | Left] = asyncio.get_running_loop().create_future()
        self._joined: Joined | None = None
        self._claimed_at = place.clock.monotonic()
        self._age_s = job.updated_at - job.created_at  # at the claim, by the catalog's clock alone
        self._queue_s = self._fetch_s = 0.0
        self._told: set[asyncio.Task[None]] = set()
        self._lead: Pixels | None = None
        """Finished frames with which the clip begins."""
        self._first: asyncio.TimerHandle | None = None
        """Timer that publishes the first `Progress`, unless a later event comes before."""
        self._telling: asyncio.Task[None] | None = None
        """Publishing of the last `Progress`, whose preview may still be encoded."""
        self._submitted = self._cancelled = self._from_cache = False
        self._steps_run = 0
        """Steps run by an attempt that ended without an image."""

    # engine events, called on the event loop in order

    def hear(self, event: Event) -> None:
        match event:
            case Joined():
                self._on_joined(event)
            case Advanced():
                self._on_advanced(event)
            case LatentCaptured():
                self.outputs.capture(event, self._card, self.plan.run_steps(self.job.request.steps))
            case Checkpointed():
                self.outputs.checkpoint(event, self.plan)
            case Finished() | Left() if not self._ended.done():
                self._nothing_to_add()
                self._ended.set_result(event)

    def _on_joined(self, event: Joined) -> None:
        self._joined = event
        # the row's times are by the catalog's clock, the engine's are monotonic
        in_hand_s = event.at - self._claimed_at - self._fetch_s - event.encode_s
        self._queue_s = max(self._age_s + in_hand_s, 0.0)
        METRICS.queue_seconds.observe(self._queue_s)
        # an image finished within FIRST_S needs no `Progress`, which saves the broker and every gateway one message
        self._first = asyncio.get_running_loop().call_later(
            FIRST_S, lambda: self._in_background(self._tell(event.step, None))
        )
        if self._from_cache:
            # report the K of the state's own run, which may have had another T; an image has step 0
            of_picture = self.plan.source is PlanSource.IMAGE
            for source in self.plan.sources:
                step = PICTURE_STEP if of_picture else _step_of(source.key, self.plan.start_step)
                self._in_background(self._place.backends.bus.publish(StateUsed(source.entry_id, step)))

    def _on_advanced(self, event: Advanced) -> None:
        if event.step < event.steps:
            self._nothing_to_add()
            if self._telling is None or self._telling.done():  # else a later preview could be published first
                self._telling = self._in_background(self._tell(event.step, event.preview))

    def _nothing_to_add(self) -> None:
        if self._first is not None:
            self._first.cancel()

    async def _tell(self, step: int, preview: Pixels | None) -> None:
        picture = "" if preview is None else base64.b64encode(await self._preview(preview)).decode()
        message = Progress(self.job.id, step, self.plan.run_steps(self.job.request.steps), picture)
        await self._place.backends.bus.publish(message)

    async def _preview(self, pixels: Pixels) -> bytes:
        given = pixels, self._card.frames.fps
        small = pixels.nbytes <= INLINE_BYTES
        return preview_png(*given) if small else await asyncio.to_thread(preview_png, *given)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(_logged(work))
        self._told.add(task)
        task.add_done_callback(self._told.discard)
        return task

    # generation

    def cancel(self) -> None:
        """Remove the row before the engine's next step, or never let it join."""
        self._cancelled = True
        self._nothing_to_add()
        if self._submitted:
            self._place.engine.cancel(self.id)

    def send_previews(self) -> None:
        """Send previews from the next step on, because a stream asked for them."""
        self._previews = True
        if self._submitted:
            self._place.engine.preview(self.id)

    async def draw(self) -> Result:
        """Run the plan and store the results. Raises the error with which the engine ended the row, or what storing
        raises."""
        clock, backends, settings = self._place.clock, self._place.backends, self._place.settings
        begun = clock.monotonic()
        with tracing.span("load state", attributes={"afterimage.plan.source": self.job.plan.source}):
            prepared = await prepare(
                self.job,
                self._place.families,
                backends.blobs,
                backends.catalog.entries,
                settings.fetch_timeout_s,
                self._ahead,
                preferred=self._place.preferred,
                assigned=self._place.assigned,
            )
        self._fetch_s = clock.monotonic() - begun
        for hole in prepared.lost:
            self._in_background(backends.bus.publish(hole))
        if prepared.family is None or prepared.task is None:
            raise ElsewhereError(prepared.plan)
        self.plan, self._card, self._lead = prepared.plan, prepared.family.card, prepared.lead
        self._submit(prepared.task)
        ended = await self._ended
        if isinstance(ended, Left):
            self._steps_run = ended.steps_run
            raise ended.error
        self._trace_engine(ended)
        with tracing.span("store"):
            return await self._store(ended)

    def _submit(self, task: Task) -> None:
        if self._cancelled:
            raise CancelledError("cancelled")
        if isinstance(task.start, FromCheckpoint):
            log("gpu_worker").info("job resumed", job=self.job.id, attempt=self.job.attempt, step=task.start.step)
        else:
            self._from_cache = self._cached_start
        limit = self.job.request.deadline_s
        self._submitted = True
        self._place.engine.submit(
            replace(
                task,
                id=self.id,
                preview=self._previews,
                checkpoint_every=self._place.settings.checkpoint_every_steps,
                checkpoint_gap_s=self._place.settings.checkpoint_gap_s,
                deadline_at=None if limit is None else self._claimed_at + limit - self._age_s,
                alone=self.job.crashes >= CRASHES_TOGETHER,
            )
        )

    def _trace_engine(self, done: Finished) -> None:
        """Record what the engine did, whose thread has no trace."""
        if (joined := self._joined) is None:
            return
        joined_s = self._place.clock.monotonic() - joined.at
        denoised_s = joined_s - done.denoise_s
        ran: dict[str, str | int] = {
            "afterimage.model": self._card.name,
            "afterimage.start_step": joined.step,
            "afterimage.steps_run": done.steps_run,
        }
        tracing.past("encode prompt", joined_s + joined.encode_s, joined_s)
        tracing.past("denoise", joined_s, denoised_s, ran)
        tracing.past("decode", denoised_s, denoised_s - done.decode_s)

    async def _store(self, done: Finished) -> Result:
        begun = self._place.clock.monotonic()
        card, request, joined = self._card, self.job.request, self._joined
        picture_bytes, sha256 = await self.outputs.put_picture(self._joined_to_lead(done.pixels), card.frames.fps)
        captured = await self.outputs.captured()  # the storing of each began at its step
        timings = Timings(
            queue_s=self._queue_s,
            fetch_s=self._fetch_s,
            encode_s=joined.encode_s if joined else 0.0,
            denoise_s=done.denoise_s,
            decode_s=done.decode_s,
            store_s=self._place.clock.monotonic() - begun,
            total_s=max(self._age_s + self._place.clock.monotonic() - self._claimed_at, 0.0),
        )
        _observe(timings)
        METRICS.steps_skipped.labels(card.name).inc(done.steps_run * done.skipped)
        return Result(
            picture_key=self.outputs.picture_key,
            picture_sha256=sha256,
            picture_bytes=picture_bytes,
            model=card.name,
            weights_hash=card.weights_hash,
            steps_run=done.steps_run,
            timings=timings,
            warnings=joined.warnings if joined else (),
            captured=captured,
            compat=card.compat_for(
                request, self.plan.run_steps(request.steps), self.plan.run_guidance(request.guidance)
            ),
            skipped=round(done.skipped, 4),
        )

    def _joined_to_lead(self, pixels: Pixels) -> Pixels:
        """Return the whole clip: the lead as it was, then the frames that the run generated after those it held."""
        lead = self.plan.lead
        if lead is None or self._lead is None:
            return pixels
        return np.concatenate([self._lead, pixels[lead.held :]])

    @property
    def steps_saved(self) -> int:
        """Steps of this image that a cached state replaced, whether or not a crash came in between."""
        return self.plan.start_step if self._cached_start else 0

    @property
    def _cached_start(self) -> bool:
        """True if the cache gave the start, and not the client, who named an image."""
        return self.plan.source in CACHED and not self.job.request.named_job

    @property
    def plan_as_run(self) -> Plan | None:
        """The plan as run; None when it equals the plan on the row."""
        return self.plan if self.plan != self.job.plan else None

    @property
    def cost(self) -> Result:
        """The seconds and steps of an attempt that left without an image."""
        card, now = self._card, self._place.clock.monotonic()
        timings = Timings(
            queue_s=self._queue_s, fetch_s=self._fetch_s, total_s=max(self._age_s + now - self._claimed_at, 0.0)
        )
        return Result("", "", 0, card.name, card.weights_hash, self._steps_run, timings)


def _step_of(state_key: str, otherwise: int) -> int:
    """Return the step after which a state was captured, read from its key."""
    step = state_key.removesuffix(".safetensors").rpartition("-")[2]
    return int(step) if step.isdecimal() else otherwise


async def _logged(work: Coroutine[Any, Any, object]) -> None:
    try:
        await work
    except Exception as error:  # waiting clients poll the catalog, so a lost event must not fail the image
        log("gpu_worker").warning("event not published", error=repr(error))


def _observe(timings: Timings) -> None:
    for stage in ("fetch", "encode", "denoise", "decode", "store"):
        METRICS.stage_seconds.labels(stage).observe(getattr(timings, f"{stage}_s"))
