"""The worker's handlers: take a task, claim its job, draw it, commit it, say so, and only then acknowledge."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

import grpc

from protos import gpu_worker_pb2 as pb
from protos.gpu_worker_pb2_grpc import GpuWorkerServiceServicer, add_GpuWorkerServiceServicer_to_server
from services.gpu_worker import checkpoints
from services.gpu_worker.aside import StandingAside
from services.gpu_worker.assignment import Assignment
from services.gpu_worker.attempt import Attempt, ElsewhereError, Workplace
from services.gpu_worker.burial import Burial
from services.gpu_worker.cards import cards_here
from services.gpu_worker.claims import Claims
from services.gpu_worker.crash_evidence import CRASHES_TOGETHER, condemned
from services.gpu_worker.describing import described
from services.gpu_worker.engine import Engine
from services.gpu_worker.events import BatchRan, Event
from services.gpu_worker.moving import move
from services.gpu_worker.presence import Presence, Process
from services.gpu_worker.renewal import Renewal
from services.gpu_worker.resident import Resident
from services.gpu_worker.runner import EngineThread
from services.gpu_worker.taking import Taking
from services.gpu_worker.threads import search
from services.gpu_worker.warm import load_warm
from shared.blobs.ahead import ReadAhead
from shared.bus import Delivery
from shared.catalog.exposure import RENEWALS
from shared.devices import placed
from shared.errors import AfterimageError, CancelledError, DeadlineError, NotFoundError, UnreadableRowError, passes
from shared.messages import GenerateImage, JobCancelled, JobFailed, JobSucceeded, Message, PreviewsRequested
from shared.service import Context
from shared.telemetry import METRICS, log
from shared.types import Job, JobState, Plan, Result

T = TypeVar("T")

BUSY_RETRY_S = 5.0
"""A duplicate of a job that another worker is drawing comes back after this, or when that one's lease runs out."""
RETRY_S = 1.0
"""First delay after a failure of the task; doubles with each."""
CATALOG_RETRY_S = 5.0
"""Longest pause between two tries to commit a finished job while the catalog is away or full: shorter than a sweep, so
that with room again the commit comes first."""


class GpuWorkerService(GpuWorkerServiceServicer):
    """The models of one device, their lanes, and the batch that rides on it (design §3)."""

    name: ClassVar[str] = "gpu_worker"
    ports: ClassVar[frozenset[str]] = frozenset({"catalog", "blobs", "bus"})
    needs: ClassVar[frozenset[str]] = frozenset({"catalog", "bus"})

    def __init__(self, number: int = 1, process: Process | None = None) -> None:
        """number: of the workers in this process; the first answers for all of them over gRPC. process: what they
        share; None: this worker is the only one."""
        self._number, self._process = number, process or Process()

    async def start(self, context: Context) -> None:
        settings, self._context, bus = placed(context.settings), context, context.backends.bus
        self.worker = f"{socket.gethostname()}-{os.getpid()}" + (f"-{self._number}" if self._number > 1 else "")
        cards, load = cards_here(context.settings, alone=bus.process_local), partial(load_warm, settings=settings)
        self._models = Resident(cards, load, limit_bytes=settings.resident_bytes)
        self._taking = Taking(bus, settings.max_rows, self._handle)
        self._aside = StandingAside(context.backends.catalog, self._taking)
        self._assignment = Assignment(
            self.worker, bus, self._models, self._taking,
            max_rows=settings.max_rows, report_s=settings.report_s, mode=settings.monitor_mode,
        )  # fmt: skip
        self._device = (await self._assignment.load()).device
        engine = Engine(
            self._models.families,
            max_rows=settings.max_rows,
            tell_every_s=1 / settings.progress_per_s,
            clock=context.clock.monotonic,
            threads=search(settings, self._device),
        )
        threads = 1 if settings.batch_invariant else settings.torch_threads
        self._thread = EngineThread(engine, self._hear, threads=threads)
        self._attempts: dict[str, Attempt] = {}
        """By the engine's name for them."""
        prompt = context.backends.catalog.within(settings.lease_s / RENEWALS)  # a claim's lease runs before its answer
        self._claims = Claims(prompt.jobs, self.worker, settings.lease_s)
        renewal = Renewal(context.backends.catalog, self._claims, self._attempts, settings.lease_s)
        presence = Presence(context.backends.catalog, self._claims, settings.lease_s, self._process)
        self._burial = Burial(context.backends, context.clock)
        self._finished = self._handed_back = 0
        self._draining = False
        self._subscription = await bus.subscribe([JobCancelled, PreviewsRequested], self._on_wish)
        await self._assignment.begin(self._thread.serve)
        self._renewing = asyncio.gather(renewal.run(), presence.run(), return_exceptions=True)

    def register(self, server: grpc.aio.Server) -> str | None:
        if self._number > 1:
            return None
        add_GpuWorkerServiceServicer_to_server(self, server)
        return pb.DESCRIPTOR.services_by_name["GpuWorkerService"].full_name

    async def drain(self, timeout_s: float | None = None) -> None:
        """Takes nothing new; what is not finished in time (settings.drain_s unless told otherwise) goes back to its
        lane, neither failed nor crashed."""
        timeout_s = self._context.settings.drain_s if timeout_s is None else timeout_s
        self._draining = True
        await self._assignment.end()
        await self._aside.close()
        await self._taking.close(timeout_s)

    async def stop(self) -> None:
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        await self._subscription.close()
        await self._thread.stop()

    # ---- gRPC ----

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:
        return pb.DescribeResponse(
            worker=self.worker,
            device=str(self._device),
            models=described(self._models.families, self._assignment.step_s),
            rows=len(self._attempts),
            max_rows=self._context.settings.max_rows,
            draining=self._draining,
        )

    async def Drain(self, request: pb.DrainRequest, context: Any) -> pb.DrainResponse:
        finished, handed_back = self._finished, self._handed_back
        await self.drain(request.timeout_s or None)
        return pb.DrainResponse(finished=self._finished - finished, handed_back=self._handed_back - handed_back)

    # ---- the engine ----

    def _hear(self, events: list[Event]) -> None:
        ran: list[BatchRan] = []
        for event in events:
            if isinstance(event, BatchRan):
                ran.append(event)
            elif (attempt := self._attempts.get(event.id)) is not None:
                attempt.hear(event)
        if ran:  # a picture's steps are counted after its finish is on its way
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
        if isinstance(fact, JobCancelled | PreviewsRequested):
            for attempt in self._attempts_at(fact.job_id):
                attempt.cancel() if isinstance(fact, JobCancelled) else attempt.send_previews()

    def _attempts_at(self, job_id: str) -> list[Attempt]:
        """One, or more when this worker slept longer than a lease and then claimed its own job again."""
        return [attempt for attempt in self._attempts.values() if attempt.job.id == job_id]

    async def _handle(self, delivery: Delivery) -> None:
        message = delivery.message
        if not isinstance(message, GenerateImage):
            await delivery.bury(f"a worker cannot do {type(message).__name__}")
            return
        try:
            async with self._process.turns.together():
                done = await self._draw(message, delivery)
            if not done:
                async with self._process.turns.alone():
                    await self._draw(message, delivery, alone=True)
        except UnreadableRowError:  # said once by the catalog; a worker that can read the row takes the task
            await delivery.reject(delay_s=BUSY_RETRY_S, counts=False)
        except AfterimageError as error:  # a port is away: the task waits, the row's lease runs out if it must
            log("gpu_worker").warning("task put back", job=message.job_id, error=str(error))
            self._aside.unanswered()
            await delivery.reject(delay_s=error.retry_after_s or RETRY_S, counts=False)
        except Exception as error:  # a bug must cost neither the task nor its place in the batch
            log("gpu_worker").error("task put back", job=message.job_id, error=repr(error), exc_info=error)
            await delivery.reject(delay_s=BUSY_RETRY_S, counts=False)

    async def _draw(self, task: GenerateImage, delivery: Delivery, *, alone: bool = False) -> bool:
        """False when the job must be the only one in this process's hands, and is not claimed until it is: what merely
        waits beside another would count as present at its crash, and crash after crash condemn it too."""
        with contextlib.closing(self._read_ahead(task, delivery)) as ahead, self._claims.holding(task.job_id):
            if (job := await self._claim(task.job_id, alone)) is not None:
                if alone or job.crashes < CRASHES_TOGETHER:
                    await self._run(job, delivery, ahead, previews=task.previews)
                    return True
                if await self._unclaimed(job):
                    return False
        await self._not_ours(task.job_id, delivery)
        return True

    def _read_ahead(self, task: GenerateImage, delivery: Delivery) -> ReadAhead:
        """The state that the task names, read while the job is claimed; one that comes back goes on from a checkpoint,
        or is another's."""
        state = ("", "") if delivery.redelivered else (task.state_key, task.state_sha256)
        return ReadAhead(self._context.backends.blobs, *state)

    async def _unclaimed(self, job: Job) -> bool:
        releasing = asyncio.ensure_future(self._patiently(lambda: self._jobs.release(job.id, job.attempt)))
        try:
            return await asyncio.shield(releasing)
        except asyncio.CancelledError:
            await releasing
            raise

    async def _claim(self, job_id: str, alone: bool) -> Job | None:
        """A claim that is cancelled half-way stands in the catalog, so it is waited for and handed back."""
        claiming = asyncio.ensure_future(self._claims.claim(job_id, alone=alone))
        try:
            job: Job | None = await asyncio.shield(claiming)
        except asyncio.CancelledError:
            if (job := await claiming) is not None and await self._jobs.release(job.id, job.attempt):
                self._handed_back += 1
            raise
        return job

    async def _run(self, job: Job, delivery: Delivery, ahead: ReadAhead, *, previews: bool) -> None:
        METRICS.job_attempts.labels(str(delivery.redelivered).lower()).inc()
        for older in self._attempts_at(job.id):
            older.cancel()
        attempt = Attempt(self._place, job, ahead, previews=previews)
        self._attempts[attempt.id] = attempt
        try:
            spans = (job.exposed_from, 0.0) if job.crashes_alone else ()
            if said := condemned(job, [await self._patiently(partial(self._jobs.fleet, since)) for since in spans]):
                await self._give_up(attempt, said, delivery, said)
            else:
                await self._attempt(attempt, delivery)
        except asyncio.CancelledError:
            await self._hand_back(attempt)
            raise
        finally:
            self._attempts.pop(attempt.id, None)

    async def _attempt(self, attempt: Attempt, delivery: Delivery) -> None:
        job = attempt.job
        try:
            result = await attempt.draw()
            plan = attempt.plan_as_run
            won = await self._patiently(lambda: self._jobs.finish(job.id, job.attempt, result, plan))
        except DeadlineError:
            await self._patiently(lambda: self._jobs.cancel(job.id))
            await self._context.backends.bus.publish(JobCancelled(job.id))
            await self._lost(attempt, delivery)
        except CancelledError:
            await self._lost(attempt, delivery)
        except ElsewhereError as error:
            await self._moved(attempt, error.plan, delivery)
        except Exception as error:
            await (self._put_off if passes(error) else self._failed)(attempt, error, delivery)
        else:
            await (self._succeeded(attempt, result, delivery) if won else self._lost(attempt, delivery))

    async def _patiently(self, write: Callable[[], Awaitable[T]]) -> T:
        """Writes how a job ended, however long the catalog is away or full: left to its lease, the job would count as
        a crash and its picture would be drawn again."""
        wait_s = RETRY_S
        while True:
            try:
                return await write()
            except AfterimageError as error:
                if not passes(error):
                    raise
                log("gpu_worker").warning("catalog does not take a job's end; trying again", error=str(error))
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, CATALOG_RETRY_S)

    async def _succeeded(self, attempt: Attempt, result: Result, delivery: Delivery) -> None:
        self._finished += 1
        METRICS.steps_saved.labels(attempt.plan.model).inc(attempt.steps_saved)
        job, picture = attempt.job, (result.picture_key, result.picture_sha256)
        fact = JobSucceeded(job.id, job.attempt, self.worker, result.model, result.steps_run, *picture)
        await self._context.backends.bus.publish(fact)
        await delivery.ack()
        await attempt.settle(succeeded=True, ended=True)

    async def _lost(self, attempt: Attempt, delivery: Delivery) -> None:
        """The row is no longer this attempt's: cancelled, or claimed by another worker; or it was committed as this
        attempt's by a catalog that could not say so any more."""
        if attempt.unheard:  # the lease may have run out because nobody answered, not because its worker was dead
            await self._jobs.survived(attempt.job.id, attempt.job.crashes, attempt.job.crashes_alone)
        row = await self._not_ours(attempt.job.id, delivery, attempt.job.attempt)
        mine = row is not None and (row.state, row.attempt) == (JobState.SUCCEEDED, attempt.job.attempt)
        await attempt.settle(succeeded=mine, ended=row is None or row.state.final)
        if row is not None and row.state is JobState.CANCELLED:
            await attempt.say_stopped()

    async def _moved(self, attempt: Attempt, plan: Plan, delivery: Delivery) -> None:
        if not await self._patiently(lambda: move(self._context.backends, attempt.job, plan)):
            await self._lost(attempt, delivery)
            return
        await delivery.ack()
        await attempt.settle(succeeded=False, ended=False)

    async def _put_off(self, attempt: Attempt, error: Exception, delivery: Delivery) -> None:
        """Not the task's own error, a full disk say: it waits in its lane, and nothing is held against it."""
        job, delay_s = attempt.job, getattr(error, "retry_after_s", None) or RETRY_S
        log("gpu_worker").warning(
            "attempt put off", job=job.id, attempt=job.attempt, error=str(error), again_in_s=delay_s
        )
        if await self._patiently(lambda: self._jobs.release(job.id, job.attempt)):
            await delivery.reject(delay_s=delay_s, counts=False)
            await attempt.settle(succeeded=False, ended=False)
        else:
            await self._lost(attempt, delivery)

    async def _failed(self, attempt: Attempt, error: Exception, delivery: Delivery) -> None:
        """The task's own error: tried again a few times, then kept on the job (design §8, Attempts), whose client reads
        it; what names hosts or is a bug is for the log and the dead letter."""
        job, name = attempt.job, type(error).__name__
        said = f"{name}: {error.outside}" if isinstance(error, AfterimageError) else f"internal error: {name}"
        reason, bug = f"{name}: {error}", None if isinstance(error, AfterimageError) else error
        log("gpu_worker").error("attempt failed", job=job.id, attempt=job.attempt, error=reason, exc_info=bug)
        if job.failures + 1 >= self._context.settings.max_attempts:
            await self._give_up(attempt, said, delivery, reason)
        elif await self._patiently(lambda: self._jobs.fail(job.id, job.attempt, said, final=False)):
            await delivery.reject(delay_s=RETRY_S * 2**job.failures, counts=False)
            await attempt.settle(succeeded=False, ended=False)
        else:
            await self._lost(attempt, delivery)

    async def _give_up(self, attempt: Attempt, said: str, delivery: Delivery, reason: str) -> None:
        """First the row, then the burial: who dies in between leaves a task that is buried when it comes back.
        said: on the row; reason: on the dead letter."""
        job = attempt.job
        if await self._patiently(lambda: self._jobs.fail(job.id, job.attempt, said, final=True)):
            await self._context.backends.bus.publish(JobFailed(job.id, job.attempt, said))
            await self._burial.bury(job, delivery, reason)
            await attempt.settle(succeeded=False, ended=True)
        else:
            await self._lost(attempt, delivery)

    async def _hand_back(self, attempt: Attempt) -> None:
        attempt.cancel()
        try:
            if await self._jobs.release(attempt.job.id, attempt.job.attempt):
                self._handed_back += 1
                log("gpu_worker").info("job handed back", job=attempt.job.id, attempt=attempt.job.attempt)
                await attempt.settle(succeeded=False, ended=False)
        except AfterimageError as error:  # the process ends: the next one finds the row as a crash left it
            log("gpu_worker").warning("job not handed back", job=attempt.job.id, error=str(error))

    async def _not_ours(self, job_id: str, delivery: Delivery, attempt: int = 0) -> Job | None:
        """A duplicate: of a finished job it is answered again, under another's live lease it waits (design §8); what a
        claim without an answer left running is queued again.

        Of a failed job the task that failed is buried if nobody did so: it comes back to whoever follows its worker,
        or to this `attempt`, whose commit lost its answer.
        """
        try:
            job: Job = await self._jobs.get(job_id)
        except NotFoundError:
            await delivery.ack()
            return None
        if not job.state.final:
            back = await self._claims.hand_back(job)
            left_s = 0.0 if back else job.lease_until - self._context.clock.now()
            await delivery.reject(delay_s=min(max(left_s, RETRY_S), BUSY_RETRY_S), counts=False)
            return job
        if job.state is JobState.SUCCEEDED:
            await self._context.backends.bus.publish(JobSucceeded(job.id, job.attempt))
        if job.state is JobState.FAILED and (delivery.redelivered or job.attempt == attempt):
            await self._burial.once(job, delivery, own=job.attempt == attempt)
        else:
            await delivery.ack()
        if delivery.redelivered and not attempt:  # its worker died before it cleaned up
            await checkpoints.forget(self._context.backends.blobs, job.id)
        return job

    @property
    def _place(self) -> Workplace:
        """As it is now; nobody else keeps the models, so that they can go."""
        context, assignment = self._context, self._assignment
        return Workplace(
            context.settings, context.backends, context.clock, assignment.families, self._thread,
            assignment.preferred, assignment.duty.assigned,
        )  # fmt: skip

    @property
    def _jobs(self) -> Any:
        return self._context.backends.catalog.jobs
