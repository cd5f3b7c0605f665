"""Jobs as clients see them: the row, its image, and its timings; also the log line of each finished job."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from cachetools import FIFOCache

from protos import common_pb2 as pb
from protos import gateway_pb2
from services.gateway.deadlines import dropped_because, late_because
from services.gateway.fanout import Rows
from shared.blobs import Blobs
from shared.blobs.ahead import ReadAhead
from shared.domain.errors import AfterimageError, BlobMissingError, NotFoundError
from shared.domain.identity import label_of, subject_of
from shared.domain.messages import JobSucceeded, Progress
from shared.domain.plan_rules import shown_plan
from shared.domain.types import CacheMode, Job, JobState, Modality, Result, Scope, Timings
from shared.runtime.rpc_types import job_to_proto, plan_to_proto
from shared.runtime.telemetry import METRICS, log

_KEPT = 4096
_OURS = ("extract_s", "embed_s", "predict_s", "plan_s", "accept_s")


class Answers:
    """Views of jobs; adds to each row the seconds that only this gateway knows: the stages before acceptance, and the
    total."""

    def __init__(self, blobs: Blobs, fps: Mapping[str, float]) -> None:
        self._blobs, self._fps = blobs, fps
        self._timings: FIFOCache[str, Timings] = FIFOCache(_KEPT)

    def timed(self, job_id: str, timings: Timings) -> None:
        """Keep the seconds of a job's stages in the gateway; only those of the last 4096 jobs are kept."""
        self._timings[job_id] = timings

    def ended(self, job_id: str, total_s: float) -> None:
        if job_id in self._timings:
            self._timings[job_id] = replace(self._timings[job_id], total_s=total_s)

    def job(self, job: Job) -> pb.Job:
        shown = replace(job, plan=shown_plan(job.plan, subject_of(job.request.user)))
        message, known = job_to_proto(shown), self._timings.get(job.id)
        message.request.user = label_of(job.request.user)
        message.error = job.error or dropped_because(job)
        if job.request.modality is Modality.VIDEO:
            message.fps = self._fps.get(message.model, 0.0)
        if late := late_because(job):
            message.warnings.append(late)
        if known is not None and job.result is not None:
            _add(known, message.timings)
        return message

    def ahead(self, fact: JobSucceeded) -> ReadAhead:
        """Start reading the image that the event names, while the row is read."""
        return ReadAhead(self._blobs, fact.picture_key, fact.picture_sha256)

    async def picture(self, job: Job, ahead: ReadAhead | None = None) -> bytes:
        """Return the job's PNG. Raises NotFoundError when there is none, or none any more."""
        with _image_of(job) as result:
            return await (ahead or self._blobs).get(result.picture_key, result.picture_sha256)

    async def part(self, job: Job, offset: int, length: int, most: int) -> bytes:
        """Return the bytes of the job's PNG from `offset` on: `length` of them, `most` if that is less or length is 0.

        An image that fits is read whole, and its hash checked. Of a larger one only the part is read; the client checks
        the hash of all parts.
        """
        with _image_of(job) as result:
            if offset == 0 and result.picture_bytes <= min(length or most, most):
                return await self._blobs.get(result.picture_key, result.picture_sha256)
            if offset >= result.picture_bytes:
                return b""
            return await self._blobs.read(result.picture_key, offset, min(length or most, most))


@contextlib.contextmanager
def _image_of(job: Job) -> Iterator[Result]:
    """Give the result of a job that has an image. Raises NotFoundError when there is none, or none any more."""
    noun = job.request.modality.noun
    if job.state is JobState.SUCCEEDED and job.result is not None and not job.result.picture_key:
        raise NotFoundError(f"the {noun} of job {job.id} was erased with the job that generated it")
    if job.result is None or not job.result.picture_key:
        raise NotFoundError(f"job {job.id} is {job.state} and has no {noun}; only a succeeded job has one")
    try:
        yield job.result
    except BlobMissingError as error:
        raise NotFoundError(
            f"the {noun} of job {job.id} expired, after results_keep_s seconds or beyond its tenant's kept_jobs; send "
            "its request again"
        ) from error


class FinishedLog:
    """A log of finished jobs: one line per job that this gateway accepted or took up, once its row is final."""

    def __init__(self, rows: Rows, waited_for: Callable[[str], bool], *, prompts: bool) -> None:
        """waited_for: returns whether a waiting call will read the job's row anyway; prompts: whether to log them, but
        for requests that are private or leave the cache alone."""
        self._rows, self._waited_for, self._prompts = rows, waited_for, prompts
        self._open: FIFOCache[str, None] = FIFOCache(_KEPT)
        self._looking: set[asyncio.Task[None]] = set()

    def accepted(self, job_id: str) -> None:
        self._open[job_id] = None

    def look(self, job_id: str) -> None:
        """Read the row of a job that may have ended, unless a waiting call reads it."""
        if job_id in self._open and not self._waited_for(job_id):
            task = asyncio.create_task(self._look(job_id))
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)

    def ended(self, job: Job) -> None:
        if not job.state.final or job.id not in self._open:
            return
        del self._open[job.id]
        request, plan = job.request, job.plan
        facts: dict[str, Any] = {"job": job.id, "tenant": request.tenant, "status": job.state.value}
        facts |= {"source": plan.source.value, "start_step": plan.start_step, "steps": plan.run_steps(request.steps)}
        facts |= {"model": job.result.model if job.result else plan.model}
        facts |= {"seconds": round(job.updated_at - job.created_at, 3)}  # both by the catalog's clock
        logged = self._prompts and request.cache is not CacheMode.OFF and request.scope is not Scope.PRIVATE
        facts |= {"prompt": request.prompt} if logged else {}
        facts |= {"error": error} if (error := job.error or dropped_because(job)) else {}
        if job.deadline_met is not None:
            METRICS.deadlines.labels(request.slo or "none", "met" if job.deadline_met else "missed").inc()
        log("gateway").info("request finished", **facts)

    async def close(self) -> None:
        for task in self._looking:
            task.cancel()
        await asyncio.gather(*self._looking, return_exceptions=True)

    async def _look(self, job_id: str) -> None:
        with contextlib.suppress(AfterimageError):  # a failure costs only the log line
            self.ended(await self._rows.get(job_id))


def _add(gateway: Timings, run: pb.Timings) -> None:
    """Add the gateway's own stages to the worker's seconds, and the gateway's total if known."""
    for name in _OURS:
        setattr(run, name, getattr(gateway, name))
    run.total_s = gateway.total_s or run.total_s


def accepted_event(job: Job, position: int) -> gateway_pb2.GenerateStreamResponse:
    return gateway_pb2.GenerateStreamResponse(
        accepted=gateway_pb2.Accepted(
            job_id=job.id,
            queue_position=position,
            plan=plan_to_proto(shown_plan(job.plan, subject_of(job.request.user))),
            predicted_s=job.predicted_s,
        )
    )


def progress_event(progress: Progress, preview: bytes = b"") -> gateway_pb2.GenerateStreamResponse:
    return gateway_pb2.GenerateStreamResponse(
        progress=gateway_pb2.Progress(job_id=progress.job_id, step=progress.step, steps=progress.steps, preview=preview)
    )


def waiting_event(job: Job, position: int) -> gateway_pb2.GenerateStreamResponse:
    steps = job.plan.run_steps(job.request.steps)
    if job.checkpoint_step >= steps:  # another model began the run, with more steps than the plan's first model
        steps = max(one.run_steps(job.request.steps) for one in job.plan.may_run)
    return gateway_pb2.GenerateStreamResponse(
        progress=gateway_pb2.Progress(
            job_id=job.id,
            step=job.checkpoint_step,
            steps=steps,
            queue_position=position,
            waits_again=_waits_again(job),
        )
    )


def _waits_again(job: Job) -> str:
    """Return the reason why a job that was running is queued again; empty if the job never ran."""
    if not job.attempt:
        return ""
    if job.crashes:
        return "its worker is gone; another worker continues"
    return "the attempt failed; the job is tried again" if job.failures else "its worker returned the job to the queue"
