"""Intake of requests: from a client's message to a job row with its plan, queued on its lane or answered at once
(docs/architecture.md, Delivery rules)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from protos import common_pb2 as pb
from services.gateway.admission import Admission
from services.gateway.caller import Caller
from services.gateway.finish import Fleet, Standalones, fleet_of
from services.gateway.forecasts import Predictor
from services.gateway.lookup import Lookup, Planned
from services.gateway.obstacles import Obstacles
from services.gateway.roster import Roster
from services.gateway.served_models import Models
from services.gateway.sweeper import Confirmer
from services.gateway.tenant_use import TenantUse
from services.gateway.uploads import Uploaded, Uploads
from services.gateway.validation import seeds_of, validate
from shared.bus.hints import Hints
from shared.domain.errors import (
    AfterimageError,
    BlobCorruptError,
    BlobMissingError,
    ConfigurationError,
)
from shared.domain.exact_repeats import exact_key, repeat_result
from shared.domain.messages import JobQueued, StateLost, StateUsed, refine_lane
from shared.domain.plan_rules import lane_for, only_model, use_fallback
from shared.domain.types import Job, JobState, PlanSource, Request, Timings
from shared.models import ModelCard
from shared.runtime.telemetry import METRICS, log
from shared.service import Context
from shared.service.dispatch import dispatch

PLANS_AT_ONCE = 4
"""Plans without a job that are made for one tenant at the same time, and searches of the console; further ones wait."""


@dataclass(frozen=True)
class Accepted:
    """A job that this request created, or that an earlier request with the same idempotency key created."""

    job: Job
    timings: Timings
    picture: bytes = b""
    """The image of an exact repeat, read before the job was committed."""
    confirmed: bool = True
    """True if the broker confirmed the task; if not, the sweeper sends it, and the client gets no acceptance until
    then. For a retried request, this is the row's flag."""


class Intake:
    """Admission of requests: plan, commit, send, in this order, so that an accepted job cannot be lost."""

    def __init__(self, context: Context, models: Models, hints: Hints, roster: Roster) -> None:
        self._settings, self._clock, self._backends = context.settings, context.clock, context.backends
        self._models, self._hints = models, hints
        self._uploads = Uploads(context.backends.blobs)
        self._lookup = Lookup(context, models.cards)
        every = {**models.cards, **({models.video.name: models.video} if models.video else {})}
        self.standalones = Standalones(every, context.backends.catalog.profiles)
        self._roster = roster
        self._predictor = Predictor(
            context.backends.catalog.jobs,
            models.cards,
            self.standalones,
            self._fleet,
            lambda: roster.unable(now := context.clock.monotonic()) | roster.unconsumed(now),
        )
        rows = context.backends.catalog.jobs
        self.admission = Admission(context.settings.max_queued, rows.queued_by_tenant)
        self._tenants = TenantUse(context.settings.limits_of, rows.taken)
        self._obstacles = Obstacles(context, roster)
        self._planning = WeakValueDictionary[str, asyncio.Semaphore]()
        """Places for plans, by tenant, while plans without a job are made or wait."""
        # batches end well before the next sweep, and are rare, so few coincide with generating or storing an image
        self._confirmer = Confirmer(context.backends.catalog, every_s=min(1.0, context.settings.sweep_s / 10))

    async def accept(
        self, message: pb.Request, caller: Caller, job_ids: Sequence[str], *, durable: bool, previews: bool = False
    ) -> list[Accepted]:
        """Return the jobs of this request, one per image: new ones with these ids, or the jobs that the caller's
        idempotency key names already.

        durable: the jobs are on disk when this returns. Otherwise each is on disk only when it ends; the client waits
        for that anyway.
        """
        start = self._clock.monotonic()
        requests, card, said = self._requests(message, caller, len(job_ids))
        uploaded = await self._uploaded(message, requests[0])
        if uploaded is not None:
            each = zip(requests, job_ids, strict=True)
            requests = [replace(request, upload=uploaded.of_job(job_id)) for request, job_id in each]
        body = body_hash(message, len(job_ids)) if caller.idempotency_key else ""
        # before the queue, the disk and the plan: a retry gets its accepted job, takes no place and costs no lookup
        if first := await self._first(caller, body, len(job_ids)):
            return [Accepted(job, Timings(), confirmed=job.promised) for job in first]
        images = await self._admitted(requests, card, job_ids, said)
        try:
            if uploaded is not None:
                await self._uploads.store(uploaded, requests)
            planning_s = self._clock.monotonic() - start
            durable = durable or any(picture for _, _, picture in images)
            rows, created = await self._written([job for job, _, _ in images], caller, body, durable=durable)
        finally:
            self._arrived(requests, job_ids)
        if uploaded is not None and not created:
            await self._uploads.drop(requests)
        confirmed = [await self._announce(row, previews) if created else row.promised for row in rows]
        accept_s = self._clock.monotonic() - start - planning_s
        accepted = []
        for row, (_, planned, picture), sent in zip(rows, images, confirmed, strict=True):
            timings = replace(planned.timings, accept_s=accept_s)
            _observe(timings)
            accepted.append(Accepted(row, timings, picture if created else b"", sent))
        return accepted

    async def plan(self, message: pb.Request, caller: Caller, count: int = 1) -> list[Job]:
        """Return the jobs that `accept` would create now, without ids. Writes, sends and counts nothing. A tenant's
        plans are made PLANS_AT_ONCE at a time, or a flood of them would make other tenants' requests time out."""
        async with self.planning(caller.tenant):
            return await self._plan(message, caller, count)

    def planning(self, tenant: str) -> asyncio.Semaphore:
        """Return the tenant's places for what asks the embedder and the index without a job."""
        return self._planning.setdefault(tenant, asyncio.Semaphore(PLANS_AT_ONCE))

    async def _plan(self, message: pb.Request, caller: Caller, count: int) -> list[Job]:
        requests, card, said = self._requests(message, caller, count)
        if (uploaded := await self._uploaded(message, requests[0])) is not None:
            requests = [replace(request, upload=uploaded.of_job("")) for request in requests]
        ahead = await self._predictor.ahead(requests[0], card)
        planned = await self._lookup.plan(requests, card, dry_run=True, ahead=ahead, warnings=said)
        return await self._predictor.predicted([self._job("", one, b"") for one in planned], refuse=False)

    async def close(self) -> None:
        self._uploads.close()
        await self._confirmer.close()

    async def _uploaded(self, message: pb.Request, request: Request) -> Uploaded | None:
        """Return the checked image that the client sent along; None without one. Raises InvalidRequestError."""
        return await self._uploads.read(message.image, message.mask, request.size) if message.image else None

    def _requests(
        self, message: pb.Request, caller: Caller, count: int
    ) -> tuple[list[Request], ModelCard, Sequence[str]]:
        """Return the request of each image, the card of their model, and warnings. Raises InvalidRequestError."""
        now = self._clock.monotonic()
        fitting = partial(self._roster.pixel_limit, now=now)
        request, card = validate(message, self._models, self._settings, caller.tenant, fitting, caller.subject)
        caller.check_scope(request, self._settings)
        request, said = caller.clamped(request)
        if request.slo:
            multiple = self._settings.slo_classes[request.slo]
            seconds = self.standalones.slo_s(request, card.name, multiple, self._fleet(card.name))
            request = replace(request, deadline_s=seconds)
        return seeds_of(request, count), card, said

    async def _first(self, caller: Caller, body: str, count: int) -> list[Job]:
        """Return the jobs that the caller's idempotency key already names."""
        if not caller.idempotency_key:
            return []
        return await self._backends.catalog.jobs.first_all(caller.owner, caller.idempotency_key, body, count)

    async def _written(
        self, jobs: Sequence[Job], caller: Caller, body: str, *, durable: bool
    ) -> tuple[list[Job], bool]:
        """Write the rows of all images, or of none; see `Jobs.accept`."""
        rows = self._backends.catalog.jobs
        key: dict[str, Any] = {
            "idempotency_key": caller.idempotency_key,
            "caller": caller.owner,
            "body_hash": body,
            "key_lifetime_s": self._settings.idempotency_keep_s,
            "durable": durable,
        }
        if len(jobs) > 1:
            return await rows.accept_all(jobs, **key)
        row, created = await rows.accept(jobs[0], **key)
        return [row], created

    async def _admitted(
        self, requests: Sequence[Request], card: ModelCard, job_ids: Sequence[str], said: Sequence[str]
    ) -> list[tuple[Job, Planned, bytes]]:
        """Admit and plan the images of a request, with the warnings `said`; return each job, its plan, and the image of
        each exact repeat, which needs no worker and little disk space. The caller must write the jobs' rows and call
        `_arrived`. Raises OverloadedError, NobodyAbleError and StorageFullError."""
        obstacle = self._obstacles.of(card.name)
        if obstacle is not None and not (_may_repeat(requests[0]) and self._obstacles.room_for_rows):
            raise obstacle
        await self.admission.admit(requests[0].tenant, len(requests), self._clock.monotonic())
        try:
            await self._tenants.admit(*_taken_by(requests))
            self._predictor.comes(job_ids[0], requests, card)
            ahead = await self._predictor.ahead(requests[0], card, job_ids[0])
            planned = await self._lookup.plan(requests, card, ahead=ahead, warnings=said)
            pictures = [await self._stored_picture(one) for one in planned]
            if obstacle is not None and not all(pictures):
                raise obstacle
            images = zip(job_ids, planned, pictures, strict=True)
            jobs = [self._job(job_id, one, picture) for job_id, one, picture in images]
            jobs = await self._predictor.predicted(jobs, refuse=self._settings.refuse_late)
        except BaseException:
            self._arrived(requests, job_ids)
            raise
        return list(zip(jobs, planned, pictures, strict=True))

    def _arrived(self, requests: Sequence[Request], job_ids: Sequence[str]) -> None:
        self._predictor.came(job_ids[0])
        self.admission.arrived(requests[0].tenant, len(requests))
        self._tenants.arrived(*_taken_by(requests))

    async def _stored_picture(self, planned: Planned) -> bytes:
        """Return the image of an exact repeat. A request whose image cannot be read in time is planned again, without
        the exact check."""
        plan = planned.plan
        if plan is None or plan.source is not PlanSource.EXACT:
            return b""
        try:
            async with asyncio.timeout(self._settings.fetch_timeout_s):
                return await self._backends.blobs.get(plan.state_key, plan.state_sha256)
        except (AfterimageError, TimeoutError) as error:
            if isinstance(error, BlobMissingError | BlobCorruptError):
                self._hints.tell(StateLost(plan.entry_id, 0, plan.state_key))
            said = error.outside if isinstance(error, AfterimageError) else "no answer in time"
            planned.degraded.append(f"blobs: {said}")
            METRICS.degraded.labels("blobs").inc()
            await self._lookup.replan(planned, exact=False)
            return b""

    def _fleet(self, model: str, lane: str = "") -> Fleet:
        reports, refines = self._roster.reports(self._clock.monotonic()), lane == refine_lane()
        limits = self._settings.max_rows, self._settings.max_pixels
        return fleet_of(model, reports, self.standalones.of(model), *limits, refines=refines)

    def _job(self, job_id: str, planned: Planned, picture: bytes) -> Job:
        assert planned.plan is not None
        request = planned.request
        compat = planned.card.compat_for(request)
        plan = use_fallback(planned.plan, self._roster.models(self._clock.monotonic()))
        fleet = self._fleet(plan.model)
        alone_s = 0.0 if picture else self.standalones.plan_s(request, plan, fleet)
        return Job(
            id=job_id,
            request=request,
            plan=plan,
            state=JobState.SUCCEEDED if picture else JobState.QUEUED,
            lane=lane_for(request, plan, self._models.cards),
            result=repeat_result(plan, len(picture)) if picture else None,
            vector=planned.vector,
            # a repeat becomes no entry and gets no masks: with vectors of its parts it would wait for them forever
            object_vector=b"" if picture else planned.object_vector,
            background_vector=b"" if picture else planned.background_vector,
            encoder_hash=planned.encoder_hash,
            # the same request without a deadline may keep more quality than this image does
            exact_key="" if plan.for_deadline else exact_key(request, compat, planned.card.sampler_id),
            warnings=tuple(planned.warnings),
            standalone_s=alone_s,
            batched_s=alone_s * fleet.slowdown(fleet.rows),
        )

    async def _announce(self, job: Job, previews: bool) -> bool:
        """Send the job's task, if it needs one; return whether the broker confirmed the task. Raises ConfigurationError
        when the broker refuses it."""
        if job.state.final:
            self._hints.tell(StateUsed(job.plan.entry_id, 0))
            return True
        sent = await self._send(job, previews)
        self._hints.tell(_queued(job))
        return sent

    async def _send(self, job: Job, previews: bool) -> bool:
        error = (await dispatch(self._backends.bus, job, self._confirmer.confirm, previews=previews)).error
        if error is None:
            return True
        METRICS.unsent.inc()
        if isinstance(error, ConfigurationError):  # lasts until an operator fixes it; then the sweeper sends the task
            kept = f"job {job.id} is kept; the gateway sends it once this is fixed"
            raise ConfigurationError(f"{error}; {kept}", outside=f"{error.outside}; {kept}") from error
        log("gateway").warning("task not sent; the sweeper sends it", job=job.id, error=str(error))
        return False


def body_hash(message: pb.Request, count: int = 1) -> str:
    """Return the sha256 of the request as the client sent it, before defaults and a random seed. count: its images."""
    several = f" n={count}".encode() if count > 1 else b""
    return hashlib.sha256(message.SerializeToString(deterministic=True) + several).hexdigest()


def _taken_by(requests: Sequence[Request]) -> tuple[str, int, int]:
    """Return the tenant of a request's images, their number and their frames × pixels × steps from noise."""
    return requests[0].tenant, len(requests), sum(one.pixel_steps for one in requests)


def _may_repeat(request: Request) -> bool:
    """Return whether a stored image may be the answer: only to a request that names its seed and reads the cache."""
    return request.seed_given and request.cache.reads


def _queued(job: Job) -> JobQueued:
    plan = job.plan
    return JobQueued(
        job_id=job.id,
        lane=job.lane,
        model=plan.model,
        source=plan.source,
        start_step=plan.start_step,
        predicted_hit=plan.predicted_hit,
        found=plan.found,
        sampled=plan.sampled,
        steps=plan.run_steps(job.request.steps),
        modality=job.request.modality,
        only=only_model(plan),
    )


def _observe(timings: Timings) -> None:
    for stage in (*(["extract"] if timings.extract_s else []), "embed", "predict", "plan", "accept"):
        METRICS.stage_seconds.labels(stage).observe(getattr(timings, f"{stage}_s"))
