"""The gateway's gRPC handlers: accept a request, wait for its job, answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import grpc

from protos import common_pb2
from protos import gateway_pb2 as pb
from protos.gateway_pb2_grpc import GatewayServiceServicer, add_GatewayServiceServicer_to_server
from services.gateway.caller import Caller, caller_of
from services.gateway.erasing import Eraser
from services.gateway.http.server import HttpServer
from services.gateway.intake import Intake
from services.gateway.own_jobs import own_job, own_jobs
from services.gateway.pending_calls import Calls
from services.gateway.rerouting import reroute
from services.gateway.roster import Roster
from services.gateway.served_models import Models
from services.gateway.sweeper import Sweeper
from services.gateway.uploads import Receiving
from services.gateway.validation import default_refused, image_count, page_size, page_token
from shared.bus.hints import Hints
from shared.domain.errors import AfterimageError
from shared.domain.messages import DataErased, Message, WorkerReported
from shared.domain.types import Job, JobState
from shared.models import ModelCard, of_images, served_cards
from shared.runtime.own_version import own_version
from shared.runtime.rpc_types import state_from_proto
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS, counted_when_scraped, log
from shared.service import Context
from shared.service.door import actor_of, calling

LOCAL_PEERS = ("unix:", "ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D")
"""Prefixes of gRPC peer names of callers on this machine."""
NOTED_S, LOOK_S = 2.0, 0.02
"""Seconds that CancelJob waits until the worker has recorded the cost of a running job; first delay between reads of
the row."""


class GatewayService(GatewayServiceServicer):
    """The public API (docs/architecture.md, Services)."""

    name: ClassVar[str] = "gateway"
    ports: ClassVar[frozenset[str]] = frozenset({"catalog", "blobs", "bus"})
    needs: ClassVar[frozenset[str]] = frozenset({"catalog", "bus"})
    http_address: str = ""
    _http: HttpServer | None = None

    async def start(self, context: Context) -> None:
        catalog, bus = context.backends.catalog, context.backends.bus
        # handlers have waiting callers, so their queries are bounded in time; the sweeper's large queries are not
        bounded = replace(context.backends, catalog=catalog.within(context.settings.catalog_timeout_s))
        self._context = context = replace(context, backends=bounded)
        cards = await asyncio.to_thread(_read_cards, context.settings)
        models = Models.of(cards)
        self._hints = Hints(bus, self.name)
        self._roster = Roster(context.settings.report_s, cards)
        self._reports = await bus.subscribe([WorkerReported, DataErased], self._reported)
        self._receiving = Receiving(context.settings.max_upload_bytes)
        self._eraser = Eraser(context)
        self._intake = Intake(context, models, self._hints, self._roster)
        await self._intake.standalones.read()
        self._calls = Calls(
            context, self._intake, self._hints, fps={name: card.frames.fps for name, card in cards.items()}
        )
        settings = context.settings
        counted_when_scraped(METRICS.queued, self._jobs.queued)
        await self._calls.fanout.start()
        self._sweeper = Sweeper(
            catalog,
            bus,
            settings.sweep_s,
            self._calls.requeued,
            lease_s=settings.lease_s,
            resend_s=settings.resend_s,
            clock=context.clock,
            reroute=lambda: reroute(catalog, bus, models.cards, self._assigned(cards)),
        )
        if catalog.process_local:
            await self._sweeper.recover()
        if settings.http_listen:
            self._http = HttpServer(context, self._calls, models, self._receiving, self._eraser)
        loops = self._sweeper.run(), self._intake.standalones.keep_fresh()
        self._tasks = [asyncio.create_task(one) for one in loops]

    def register(self, server: grpc.aio.Server) -> str:
        add_GatewayServiceServicer_to_server(self, server)
        return pb.DESCRIPTOR.services_by_name["GatewayService"].full_name

    async def serve_http(self) -> None:
        if self._http is not None:
            await self._http.serve()
            self.http_address = self._http.address

    async def drain(self) -> None:
        self._calls.fanout.drain()

    async def stop(self) -> None:
        if self._http is not None:
            await self._http.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._calls.timers.close()
        await self._reports.close()
        await self._intake.close()
        await self._hints.close()
        await self._calls.close()

    # ---- handlers ----

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> pb.GenerateResponse:
        caller, count = _caller(context), image_count(request.n, self._context.settings)
        # the caller learns no id, so without a key nobody can ask for the image of a call that was left
        with self._calls.open(count, drop_above_share=not caller.idempotency_key) as calls:
            with self._upload_place(request.request, caller):
                await self._calls.accept(calls, request.request, caller, durable=False)
            return await self._calls.result(calls)

    async def GenerateStream(
        self, request: pb.GenerateStreamRequest, context: Any
    ) -> AsyncIterator[pb.GenerateStreamResponse]:
        caller, previews = _caller(context), request.previews
        with self._calls.open(image_count(request.n, self._context.settings)) as calls:
            with self._upload_place(request.request, caller):
                await self._calls.accept(calls, request.request, caller, durable=True, previews=previews)
            async for response in self._calls.stream(calls, previews=previews):
                yield response

    async def GenerateFromImage(
        self, request_iterator: AsyncIterator[pb.GenerateFromImageRequest], context: Any
    ) -> AsyncIterator[pb.GenerateStreamResponse]:
        caller = _caller(context)
        with contextlib.ExitStack() as open_call:
            with self._receiving.by(caller.tenant, caller.subject):
                request = await self._receiving.whole(request_iterator)
                count = image_count(request.n, self._context.settings)
                calls = open_call.enter_context(self._calls.open(count))
                await self._calls.accept(calls, request.request, caller, durable=True, previews=request.previews)
                request.ClearField("request")  # frees the image
            async for response in self._calls.stream(calls, previews=request.previews):
                yield response

    async def Plan(self, request: pb.PlanRequest, context: Any) -> pb.PlanResponse:
        with self._upload_place(request.request, caller := _caller(context)):
            return await self._planned(request, caller)

    async def PlanFromImage(
        self, request_iterator: AsyncIterator[pb.GenerateFromImageRequest], context: Any
    ) -> pb.PlanResponse:
        caller = _caller(context)
        with self._receiving.by(caller.tenant, caller.subject):
            request = await self._receiving.whole(request_iterator)
            return await self._planned(request, caller)

    async def GetJob(self, request: pb.GetJobRequest, context: Any) -> pb.GetJobResponse:
        job = await own_job(self._jobs, request.job_id, _caller(context), self._context.settings.data_dir)
        answers, most = self._calls.answers, self._context.settings.max_message_bytes // 2
        part = await answers.part(job, request.offset, request.length, most) if request.picture else b""
        return pb.GetJobResponse(job=answers.job(job), picture=part)

    async def ListJobs(self, request: pb.ListJobsRequest, context: Any) -> pb.ListJobsResponse:
        jobs, token = await own_jobs(
            self._jobs,
            _caller(context),
            self._context.settings.data_dir,
            state=state_from_proto(request.state),
            limit=page_size(request.page_size),
            after=page_token(request.page_token),
        )
        return pb.ListJobsResponse(jobs=[self._calls.answers.job(job) for job in jobs], next_page_token=token)

    async def CancelJob(self, request: pb.CancelJobRequest, context: Any) -> pb.CancelJobResponse:
        data_dir = self._context.settings.data_dir
        job = await own_job(self._jobs, request.job_id, _caller(context), data_dir, "cancel job")
        return pb.CancelJobResponse(job=self._calls.answers.job(await self._noted(await self._calls.cancel(job.id))))

    async def Erase(self, request: pb.EraseRequest, context: Any) -> pb.EraseResponse:
        erasure = await self._eraser.erase(request, _caller(context), calling(), actor_of(context))
        return pb.EraseResponse(erasure=erasure)

    async def Locate(self, request: pb.LocateRequest, context: Any) -> pb.LocateResponse:
        local = context.peer().startswith(LOCAL_PEERS)
        internal = self._context.internal_address if local else ""
        return pb.LocateResponse(internal_address=internal, version=own_version())

    # ---- shared by the handlers ----

    def _upload_place(self, request: common_pb2.Request, caller: Caller) -> contextlib.AbstractContextManager[None]:
        """Count a request that has its image in its only message, as one whose image comes in parts."""
        if not request.image:
            return contextlib.nullcontext()
        return self._receiving.by(caller.tenant, caller.subject)

    async def _planned(self, asked: pb.PlanRequest | pb.GenerateStreamRequest, caller: Caller) -> pb.PlanResponse:
        jobs = await self._intake.plan(asked.request, caller, image_count(asked.n, self._context.settings))
        return pb.PlanResponse(jobs=[self._calls.answers.job(job) for job in jobs])

    def _assigned(self, cards: Mapping[str, ModelCard]) -> frozenset[str] | None:
        """Return the models that some worker runs, the video model included; None: unknown."""
        assigned = self._roster.models(self._context.clock.monotonic())
        return assigned and assigned | (cards.keys() - of_images(cards).keys())

    async def _reported(self, fact: Message) -> None:
        if isinstance(fact, WorkerReported):
            self._roster.reported(fact, self._context.clock.monotonic())
        elif isinstance(fact, DataErased):
            self._context.backends.catalog.erasing.forget()

    @property
    def _jobs(self) -> Any:
        return self._context.backends.catalog.jobs

    async def _noted(self, job: Job) -> Job:
        """Return a cancelled job with its cost, if a worker had the job and records the cost in time. The job stays
        cancelled even if the catalog cannot be read again."""
        now, look_s = asyncio.get_running_loop().time, LOOK_S
        end = now() + NOTED_S
        while job.state is JobState.CANCELLED and job.worker and job.result is None and now() < end:
            await asyncio.sleep(look_s)
            look_s = min(2 * look_s, 0.25)
            with contextlib.suppress(AfterimageError):
                job = await self._jobs.get(job.id)
        return job


def _caller(context: Any) -> Caller:
    return caller_of(calling(), list(context.invocation_metadata() or ()))


def _read_cards(settings: Settings) -> dict[str, ModelCard]:
    """Return the cards of the served models; reads what their keys need once, not during the first request. Logs which
    models' default requests the settings refuse."""
    cards = served_cards(settings)
    for card in cards.values():
        _ = card.weights_hash, card.reuse_key
        if rule := default_refused(card, settings):
            log(GatewayService.name).warning("default requests are refused", model=card.name, rule=rule)
    return cards
