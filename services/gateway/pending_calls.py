"""A call that waits for its job: the job is accepted, followed until its row is final, and answered."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass

from protos import common_pb2
from protos import gateway_pb2 as pb
from services.gateway.caller import Caller
from services.gateway.deadlines import DropTimers, outcome_error
from services.gateway.fanout import Fanout, Watch
from services.gateway.intake import Accepted, Intake
from services.gateway.job_views import Answers, FinishedLog, accepted_event, progress_event, waiting_event
from services.gateway.merging import merged
from shared.blobs.ahead import ReadAhead
from shared.bus.hints import Hints
from shared.domain.errors import AfterimageError, UnavailableError, passes
from shared.domain.ids import new_id
from shared.domain.messages import JobCancelled, JobSucceeded, PreviewsRequested, Progress
from shared.domain.types import Job, JobState
from shared.runtime import tracing
from shared.runtime.telemetry import METRICS
from shared.service import Context

PREVIEWS_AGAIN_S = 1.0
"""Minimum seconds between two requests of one stream for previews that have not arrived."""


@dataclass
class PendingCall:
    """One waiting call and its job."""

    watch: Watch
    start: float
    job: Job | None = None
    picture: bytes = b""
    confirmed: bool = True
    ahead: ReadAhead | None = None
    """The read of the image, begun when JobSucceeded arrives."""

    def close(self) -> None:
        if self.ahead is not None:
            self.ahead.close()


class Calls:
    """All calls that wait at this gateway. Jobs are dropped when their call leaves or their deadline passes, if
    `drop_if_late` is set."""

    def __init__(self, context: Context, intake: Intake, hints: Hints, fps: Mapping[str, float]) -> None:
        """fps: frames per second of each served model's clips."""
        self._jobs, self._clock, self._intake, self._hints = context.backends.catalog.jobs, context.clock, intake, hints
        self._most_bytes = context.settings.max_message_bytes // 2
        """Most bytes of images in one answer; GetJob returns larger ones in parts."""
        self._process_local = context.backends.catalog.process_local
        self.planning = intake.planning
        self.timers = DropTimers(self.cancel)
        self.answers = Answers(context.backends.blobs, fps)
        self.fanout = Fanout(context.backends.bus, self._ended)
        self._finished = FinishedLog(self._jobs, self.fanout.waited_for, prompts=context.settings.log_prompts)

    async def close(self) -> None:
        await self._finished.close()
        await self.fanout.stop()

    @contextlib.contextmanager
    def open(
        self, count: int, *, drop_left: bool = False, drop_above_share: bool = False
    ) -> Iterator[list[PendingCall]]:
        """Watch the jobs of a request, one per image, before they exist.

        When the caller leaves early, jobs for which no other call waits may be dropped: those with `drop_if_late`; all,
        with `drop_left`; and with `drop_above_share`, all while their tenant has more of a full queue than its share.
        """
        if self.fanout.draining:
            raise UnavailableError(
                "this gateway is shutting down; retry in 2 s, or ask another replica", retry_after_s=2.0
            )
        with contextlib.ExitStack() as after, contextlib.ExitStack() as watching:
            now, ids = self._clock.monotonic(), sorted(new_id() for _ in range(count))
            calls = [PendingCall(watching.enter_context(self.fanout.watch(job_id)), now) for job_id in ids]
            for call in calls:
                after.callback(self._unwatched, call)
            try:
                yield calls
            except (asyncio.CancelledError, GeneratorExit):
                if not self.fanout.draining:  # while draining, the gateway ended the call, not the client
                    for call in calls:
                        self._left(call, drop=drop_left, above_share=drop_above_share)
                raise
            finally:
                for call in calls:
                    call.close()

    async def accept(
        self,
        calls: Sequence[PendingCall],
        request: common_pb2.Request,
        caller: Caller,
        *,
        durable: bool,
        previews: bool = False,
    ) -> None:
        try:
            accepted = await self._intake.accept(
                request, caller, [call.watch.job_id for call in calls], durable=durable, previews=previews
            )
            for call, one in zip(calls, accepted, strict=True):
                self._begin(call, one)
        except AfterimageError as error:
            METRICS.refused.labels(type(error).__name__).inc()
            raise
        tracing.note("afterimage.job.ids", [one.job.id for one in accepted])

    def _begin(self, call: PendingCall, accepted: Accepted) -> None:
        job = call.job = accepted.job
        call.picture, call.confirmed = accepted.picture, accepted.confirmed
        if job.id != call.watch.job_id:  # a retry: the first job of this idempotency key
            self.fanout.redirect(call.watch, job.id)
            if not job.state.final:
                self._finished.accepted(job.id)
        else:
            self._finished.accepted(job.id)
            self.answers.timed(job.id, accepted.timings)
            self._arm(job)

    async def result(self, calls: Sequence[PendingCall]) -> pb.GenerateResponse:
        """Return the answer once the jobs' rows are final. Raises the error that the job of one image ended with; of
        several images the answer names those that failed."""
        if len(calls) > 1:
            return pb.GenerateResponse(images=await self._images(calls))
        (call,) = calls
        assert call.job is not None
        job = call.job
        async for event in self._follow(call, job):
            if isinstance(event, Job):
                job = event
        return await self._answer(job, call)  # its final row, the last event

    async def stream(self, calls: Sequence[PendingCall], *, previews: bool) -> AsyncIterator[pb.GenerateStreamResponse]:
        """Yield the events of all images, each with the number of its image."""
        if len(calls) == 1:
            async for response in self._events(calls[0], previews=previews):
                yield response
            return
        async for number, response in merged([self._one_of_several(call, previews=previews) for call in calls]):
            response.index = number
            yield response

    async def _images(self, calls: Sequence[PendingCall]) -> list[pb.Image]:
        images: dict[int, pb.Image] = {}
        left = self._most_bytes
        async for event in self.stream(calls, previews=False):
            if event.HasField("result"):
                picture = event.result.picture if len(event.result.picture) <= left else b""
                left -= len(picture)
                images[event.index] = pb.Image(job=event.result.job, picture=picture)
            elif event.HasField("failed"):
                images[event.index] = event.failed
        return [images[number] for number in sorted(images)]

    async def _one_of_several(self, call: PendingCall, *, previews: bool) -> AsyncIterator[pb.GenerateStreamResponse]:
        """Yield the events of one image, and its failure as the last one. An error that passes ends the whole call: the
        client asks again."""
        try:
            async for response in self._events(call, previews=previews):
                yield response
        except AfterimageError as error:
            if call.job is None or passes(error):
                raise
            failed = pb.Image(job=self.answers.job(call.job), code=error.code, error=error.outside)
            yield pb.GenerateStreamResponse(failed=failed)

    async def _events(self, call: PendingCall, *, previews: bool) -> AsyncIterator[pb.GenerateStreamResponse]:
        """Yield the acceptance once the broker has the task, then progress, then the result."""
        assert call.job is not None
        job, ask_at = call.job, 0.0
        if call.confirmed:
            yield accepted_event(job, 0 if job.state.final else await self._jobs.position(job.id))
        async for event in self._follow(call, job):
            if not call.confirmed:
                if isinstance(event, Job) and not event.promised:  # the sweeper has yet to send its task
                    continue
                call.confirmed = True
                yield accepted_event(job, await self._jobs.position(job.id))
            if isinstance(event, Progress):
                preview = base64.b64decode(event.preview) if previews else b""
                now = self._clock.monotonic()
                if previews and not preview and now >= ask_at:  # once per worker that takes the job
                    self._hints.tell(PreviewsRequested(event.job_id))
                    ask_at = now + PREVIEWS_AGAIN_S
                yield progress_event(event, preview)
            elif event.state.final:
                call.job = event
                yield pb.GenerateStreamResponse(result=await self._answer(event, call))
            elif event.state is JobState.QUEUED:
                yield waiting_event(event, await self._jobs.position(event.id))

    async def cancel(self, job_id: str) -> Job:
        job = await self._jobs.cancel(job_id)
        if job.state is JobState.CANCELLED:
            self._hints.tell(JobCancelled(job_id))  # a worker that misses the event is refused at its next write
        return job

    def requeued(self, job: Job) -> None:
        """Follow a job whose task the sweeper sent again."""
        self._arm(job)
        if self._process_local:  # the gateway process that accepted it is gone
            self._finished.accepted(job.id)

    async def _follow(self, call: PendingCall, job: Job) -> AsyncIterator[Progress | Job]:
        """Yield every event of the job until its row is final, and that row last."""
        if job.state.final:
            yield job
            return

        def read_ahead(event: JobSucceeded) -> None:
            call.close()  # a duplicate's event: drop the first read
            call.ahead = self.answers.ahead(event)

        async for event in self.fanout.follow(call.watch, self._jobs, read_ahead):
            yield event

    async def _answer(self, job: Job, call: PendingCall) -> pb.GenerateResponse:
        model, error = job.result.model if job.result else job.plan.model, outcome_error(job)
        self._finished.ended(job)
        METRICS.requests.labels(job.state, job.plan.source, model).inc()
        if error is not None:
            raise error
        picture = call.picture or await self.answers.picture(job, call.ahead)
        self.answers.ended(job.id, self._clock.monotonic() - call.start)
        sent = picture if len(picture) <= self._most_bytes else b""
        return pb.GenerateResponse(job=self.answers.job(job), picture=sent)

    def _left(self, call: PendingCall, *, drop: bool, above_share: bool) -> None:
        if (job := call.job) is None or self.fanout.waited_for(job.id, besides=call.watch):
            return
        above = above_share and self._intake.admission.above_share(job.request.tenant)
        if drop or above or job.request.drop_if_late:
            self.timers.drop_soon(job.id)

    def _unwatched(self, call: PendingCall) -> None:
        if call.job is not None:
            self._finished.look(call.job.id)

    def _arm(self, job: Job) -> None:
        self.timers.arm(job, now=job.updated_at)  # just written, so this is the catalog's clock

    def _ended(self, job_id: str) -> None:
        self.timers.disarm(job_id)
        self._finished.look(job_id)
        self._intake.admission.rate.finished(self._clock.monotonic())
