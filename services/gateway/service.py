"""The gateway's handlers: accept, wait, answer."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import grpc

from protos import gateway_pb2 as pb
from protos.gateway_pb2_grpc import GatewayServiceServicer, add_GatewayServiceServicer_to_server
from services.gateway.answers import Answers, FinishedLog, accepted_event, progress_event, waiting_event
from services.gateway.deadlines import DropTimers, outcome_error
from services.gateway.fanout import Fanout, Watch
from services.gateway.idempotency import METADATA_KEY, check_key
from services.gateway.intake import Caller, Intake
from services.gateway.rerouting import reroute
from services.gateway.roster import Roster
from services.gateway.sweeper import Sweeper
from services.gateway.validation import Models, check_tenant, page_size, page_token
from shared.blobs.ahead import ReadAhead
from shared.bus.hints import Hints
from shared.errors import AfterimageError, NotFoundError, UnavailableError, UnreadableRowError
from shared.ids import new_id
from shared.messages import JobCancelled, JobSucceeded, Message, PreviewsRequested, Progress, WorkerReported
from shared.models import ModelCard, served_cards
from shared.rpc_types import state_from_proto
from shared.service import Context
from shared.settings import Settings
from shared.telemetry import METRICS, counted_when_scraped
from shared.types import Job, JobState

TENANT_KEY = "tenant"
"""Call metadata that names the tenant (API keys will)."""
LOCAL_PEERS = ("unix:", "ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D")
"""How gRPC names callers on this machine."""
PREVIEWS_AGAIN_S = 1.0
"""Between two requests of one stream for previews that do not come."""
NOTED_S, LOOK_S = 2.0, 0.02
"""A caller who cancels what runs waits for its worker's note on what it had cost; the row is looked at so often."""


@dataclass
class Visit:
    """One waiting call."""

    watch: Watch
    start: float
    job: Job | None = None
    picture: bytes = b""
    confirmed: bool = True
    ahead: ReadAhead | None = None
    """The picture, from the moment that it is heard of."""

    def close(self) -> None:
        if self.ahead is not None:
            self.ahead.close()


class GatewayService(GatewayServiceServicer):
    """The public door (design §3)."""

    name: ClassVar[str] = "gateway"
    ports: ClassVar[frozenset[str]] = frozenset({"catalog", "blobs", "bus"})
    needs: ClassVar[frozenset[str]] = frozenset({"catalog", "bus"})

    async def start(self, context: Context) -> None:
        catalog, bus = context.backends.catalog, context.backends.bus
        # a caller waits for what handlers ask; nobody for the sweeper, whose questions are large
        bounded = replace(context.backends, catalog=catalog.within(context.settings.catalog_timeout_s))
        self._context = context = replace(context, backends=bounded)
        cards = await asyncio.to_thread(_read_cards, context.settings)
        large, *small = cards
        models = Models(cards, large=large, small=small[0] if small else None)
        self._hints = Hints(bus, self.name)
        self._roster = Roster(context.settings.report_s)
        self._reports = await bus.subscribe([WorkerReported], self._reported)
        self._intake = Intake(context, models, self._hints, self._roster)
        self._timers = DropTimers(self._cancel)
        self._answers = Answers(context.backends.blobs)
        self._fanout = Fanout(bus, self._ended)
        settings, jobs = context.settings, context.backends.catalog.jobs
        self._finished = FinishedLog(jobs, self._fanout.waited_for, prompts=settings.log_prompts)
        counted_when_scraped(METRICS.queued, jobs.queued)
        await self._fanout.start()
        self._sweeper = Sweeper(
            catalog,
            bus,
            settings.sweep_s,
            self._requeued,
            lease_s=settings.lease_s,
            resend_s=settings.resend_s,
            clock=context.clock,
            reroute=lambda: reroute(catalog, bus, cards, self._roster.models(context.clock.monotonic())),
        )
        if catalog.process_local:
            await self._sweeper.recover()
        self._sweeping = asyncio.create_task(self._sweeper.run())

    def register(self, server: grpc.aio.Server) -> str:
        add_GatewayServiceServicer_to_server(self, server)
        return pb.DESCRIPTOR.services_by_name["GatewayService"].full_name

    async def drain(self) -> None:
        self._fanout.drain()

    async def stop(self) -> None:
        self._sweeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._sweeping
        self._timers.close()
        await self._reports.close()
        await self._intake.close()
        await self._finished.close()
        await self._hints.close()
        await self._fanout.stop()

    # ---- handlers ----

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> pb.GenerateResponse:
        with self._visit() as visit:
            job = await self._accept(request.request, context, visit, told_now=False)
            async for event in self._follow(visit):
                if isinstance(event, Job):
                    job = event
            return await self._answer(job, visit)  # its final row, with which following ends

    async def GenerateStream(
        self, request: pb.GenerateStreamRequest, context: Any
    ) -> AsyncIterator[pb.GenerateStreamResponse]:
        with self._visit() as visit:
            ask_at = 0.0
            job = await self._accept(request.request, context, visit, told_now=True, previews=request.previews)
            if visit.confirmed:
                yield accepted_event(job, 0 if job.state.final else await self._jobs.position(job.id))
            async for event in self._follow(visit):
                if not visit.confirmed:
                    if isinstance(event, Job) and not event.promised:  # its task is to be sent
                        continue
                    visit.confirmed = True
                    yield accepted_event(job, await self._jobs.position(job.id))
                if isinstance(event, Progress):
                    preview = base64.b64decode(event.preview) if request.previews else b""
                    now = self._context.clock.monotonic()
                    if request.previews and not preview and now >= ask_at:  # of each worker that takes the job up
                        self._hints.tell(PreviewsRequested(event.job_id))
                        ask_at = now + PREVIEWS_AGAIN_S
                    yield progress_event(event, preview)
                elif event.state.final:
                    yield pb.GenerateStreamResponse(result=await self._answer(event, visit))
                elif event.state is JobState.QUEUED:
                    yield waiting_event(event, await self._jobs.position(event.id))

    async def GetJob(self, request: pb.GetJobRequest, context: Any) -> pb.GetJobResponse:
        job = await self._own(request.job_id, context)
        picture = await self._answers.picture(job) if request.picture else b""
        return pb.GetJobResponse(job=self._answers.job(job), picture=picture)

    async def ListJobs(self, request: pb.ListJobsRequest, context: Any) -> pb.ListJobsResponse:
        jobs, token = await self._jobs.list(
            tenant=_caller(context).tenant,
            state=state_from_proto(request.state),
            limit=page_size(request.page_size),
            after=page_token(request.page_token),
        )
        return pb.ListJobsResponse(jobs=[self._answers.job(job) for job in jobs], next_page_token=token)

    async def CancelJob(self, request: pb.CancelJobRequest, context: Any) -> pb.CancelJobResponse:
        job = await self._own(request.job_id, context)
        return pb.CancelJobResponse(job=self._answers.job(await self._noted(await self._cancel(job.id))))

    async def Locate(self, request: pb.LocateRequest, context: Any) -> pb.LocateResponse:
        local = context.peer().startswith(LOCAL_PEERS)
        return pb.LocateResponse(internal_address=self._context.internal_address if local else "")

    # ---- what handlers share ----

    async def _reported(self, fact: Message) -> None:
        if isinstance(fact, WorkerReported):
            self._roster.reported(fact, self._context.clock.monotonic())

    @property
    def _jobs(self) -> Any:
        return self._context.backends.catalog.jobs

    @contextlib.contextmanager
    def _visit(self) -> Iterator[Visit]:
        """Listens to the coming job before it exists; a caller that leaves early may take its job along."""
        if self._fanout.draining:
            raise UnavailableError("shutting down; try another replica, or again in a moment", retry_after_s=2.0)
        with contextlib.ExitStack() as after, self._fanout.watch(new_id()) as watch:
            visit = Visit(watch, self._context.clock.monotonic())
            after.callback(self._unwatched, visit)
            try:
                yield visit
            except (asyncio.CancelledError, GeneratorExit):
                if not self._fanout.draining:  # else it is us who leave
                    self._left(visit)
                raise
            finally:
                visit.close()

    def _unwatched(self, visit: Visit) -> None:
        if visit.job is not None:
            self._finished.look(visit.job.id)

    async def _accept(self, request: Any, context: Any, visit: Visit, *, told_now: bool, previews: bool = False) -> Job:
        job_id = visit.watch.job_id
        try:
            accepted = await self._intake.accept(
                request, _caller(context), job_id, told_now=told_now, previews=previews
            )
        except AfterimageError as error:
            METRICS.refused.labels(type(error).__name__).inc()
            raise
        job = visit.job = accepted.job
        visit.picture, visit.confirmed = accepted.picture, accepted.confirmed
        if job.id != visit.watch.job_id:  # a retry: the first job of this idempotency key
            self._fanout.redirect(visit.watch, job.id)
            if not job.state.final:
                self._finished.accepted(job.id)
        else:
            self._finished.accepted(job.id)
            self._answers.timed(job.id, accepted.timings)
            self._arm(job)
        return job

    async def _follow(self, visit: Visit) -> AsyncIterator[Progress | Job]:
        """Everything heard of the job until its row is final."""
        assert visit.job is not None
        if visit.job.state.final:
            yield visit.job
            return

        def read_ahead(fact: JobSucceeded) -> None:
            visit.close()  # a duplicate's fact: one read is enough
            visit.ahead = self._answers.ahead(fact)

        async for event in self._fanout.follow(visit.watch, self._jobs, read_ahead):
            yield event

    def _left(self, visit: Visit) -> None:
        job = visit.job
        if job and job.request.drop_if_late and not self._fanout.waited_for(job.id, besides=visit.watch):
            self._timers.drop_soon(job.id)

    async def _answer(self, job: Job, visit: Visit) -> pb.GenerateResponse:
        model, error = job.result.model if job.result else job.plan.model, outcome_error(job)
        self._finished.ended(job)
        METRICS.requests.labels(job.state, job.plan.source, model).inc()
        if error is not None:
            raise error
        picture = visit.picture or await self._answers.picture(job, visit.ahead)
        self._answers.ended(job.id, self._context.clock.monotonic() - visit.start)
        return pb.GenerateResponse(job=self._answers.job(job), picture=picture)

    async def _own(self, job_id: str, context: Any) -> Job:
        """The caller's job; another tenant's looks like none."""
        try:
            job: Job = await self._jobs.get(job_id)
            if job.request.tenant == _caller(context).tenant:
                return job
        except UnreadableRowError as error:
            if error.tenant == _caller(context).tenant:
                raise
        raise NotFoundError(f"job {job_id!r}: no such job; it never existed or its result expired")

    async def _cancel(self, job_id: str) -> Job:
        job: Job = await self._jobs.cancel(job_id)
        if job.state is JobState.CANCELLED:
            self._hints.tell(JobCancelled(job_id))  # a worker that misses it finds out at its next write
        return job

    async def _noted(self, job: Job) -> Job:
        """A cancelled job with what its worker noted, where one had it and says so in time. It is cancelled whether or
        not the catalog can be asked again."""
        now, look_s = asyncio.get_running_loop().time, LOOK_S
        end = now() + NOTED_S
        while job.state is JobState.CANCELLED and job.worker and job.result is None and now() < end:
            await asyncio.sleep(look_s)
            look_s = min(2 * look_s, 0.25)
            with contextlib.suppress(AfterimageError):
                job = await self._jobs.get(job.id)
        return job

    def _arm(self, job: Job) -> None:
        self._timers.arm(job, now=job.updated_at)  # just written: this is the catalog's clock

    def _requeued(self, job: Job) -> None:
        self._arm(job)
        if self._context.backends.catalog.process_local:  # the gateway that accepted it is gone
            self._finished.accepted(job.id)

    def _ended(self, job_id: str) -> None:
        self._timers.disarm(job_id)
        self._finished.look(job_id)
        self._intake.rate.finished(self._context.clock.monotonic())


def _read_cards(settings: Settings) -> dict[str, ModelCard]:
    """The models that are served; their weights' hashes are read once, not during the first request."""
    cards = served_cards(settings)
    for card in cards.values():
        _ = card.weights_hash
    return cards


def _caller(context: Any) -> Caller:
    metadata = dict(context.invocation_metadata() or ())
    return Caller(
        tenant=check_tenant(metadata.get(TENANT_KEY, "default")),
        idempotency_key=check_key(metadata.get(METADATA_KEY, "")),
    )
