"""A task from its lane to its end: received while a row is free, claimed, attempted, and only then acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from services.gpu_worker.jobs import endings
from services.gpu_worker.jobs.attempt import Attempt, AttemptContext
from services.gpu_worker.jobs.catalog_gate import CatalogGate
from services.gpu_worker.jobs.claims import Claims
from services.gpu_worker.jobs.crash_evidence import CRASHES_TOGETHER, condemned
from services.gpu_worker.jobs.fair_shares import FairShares
from services.gpu_worker.jobs.lane_consumer import LaneConsumer
from services.gpu_worker.jobs.leases import Presence, Renewal
from services.gpu_worker.jobs.process import WorkerProcess
from shared.blobs.ahead import ReadAhead
from shared.bus import Delivery, trace
from shared.catalog.jobs.checks import CHECKS
from shared.catalog.jobs.exposure import RENEWALS
from shared.domain.errors import AfterimageError, NotFoundError, UnreadableRowError
from shared.domain.messages import GenerateImage
from shared.domain.types import Job, JobState
from shared.runtime import tracing
from shared.runtime.telemetry import METRICS, log
from shared.service import Context

LOOKED_AT = 8
"""Next jobs of each tenant that a worker reads at once: others may claim the first of them meanwhile."""
ROOM_S = 1.0
"""Seconds with a free row after which no task waits in the lanes: also a slow broker has delivered each by then."""
ALONE_S = 0.1
"""Seconds for which a lane where one tenant waits is not read again, in order of arrival."""


class Tasks:
    """The tasks of this worker's lanes, and the attempts in hand."""

    def __init__(
        self,
        context: Context,
        worker: str,
        process: WorkerProcess,
        place: Callable[[], AttemptContext],
    ) -> None:
        """place: returns the models as they are when an attempt begins; only attempts in hand keep a model loaded."""
        settings, catalog = context.settings, context.backends.catalog
        self._process, self._place = process, place
        self._bus_system = trace.system_of(context.backends.bus)
        self._jobs, self._blobs = catalog.jobs, context.backends.blobs
        self.attempts: dict[str, Attempt] = {}
        """Attempts in hand by their engine id."""
        # the lease already runs while the claim waits for its answer
        prompt = catalog.within(settings.lease_s / RENEWALS)
        self._prompt = prompt.jobs
        self.claims = Claims(prompt.jobs, worker, settings.lease_s)
        self.endings = endings.Endings(context, worker, self.claims)
        self._order = settings.lane_order
        self._shares, self._clip_shares, self._alone_until = FairShares(), FairShares(), dict[str, float]()
        self._mixed = set[str]()
        """Lanes where tasks of several tenants were exchanged, until the only tenant's next job has its own task."""
        self.lanes = LaneConsumer(context.backends.bus, settings.max_rows, self.handle)
        # a consumer of their own: clips that wait for rows would keep images from being taken
        self.clip_lanes = LaneConsumer(context.backends.bus, settings.max_rows, self.handle, ahead=False)
        self.gate = CatalogGate(catalog, self.lanes, self.clip_lanes)
        self._loops = (
            Renewal(catalog, self.claims, self.attempts, settings.lease_s),
            Presence(catalog, self.claims, settings.lease_s, process),
        )

    def begin(self) -> None:
        """Renew leases and report the worker, until `stop`."""
        self._renewing = asyncio.gather(*(loop.run() for loop in self._loops), return_exceptions=True)

    async def drain(self, timeout_s: float) -> None:
        """Take no new task. Hand back what is not finished after `timeout_s`."""
        await self.gate.close()
        await asyncio.gather(self.lanes.close(timeout_s), self.clip_lanes.close(timeout_s))

    async def stop(self) -> None:
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)

    def attempts_at(self, job_id: str) -> list[Attempt]:
        """Return the attempts at one job: several only if this worker was suspended for longer than a lease and then
        claimed its own job again."""
        return [attempt for attempt in self.attempts.values() if attempt.job.id == job_id]

    async def handle(self, delivery: Delivery) -> None:
        """Carry out one task, or that of a job of its lane whose turn it is. If a backend is away or a bug raises an
        error, put the task back into its lane."""
        message = delivery.message
        if not isinstance(message, GenerateImage):
            await delivery.bury(f"a generate lane takes GenerateImage only (got {type(message).__name__})")
            return
        try:
            for alone in (False, True):
                async with self._process.turns.alone() if alone else self._process.turns.together():
                    exchangeable = not alone and not message.only
                    if await self._carry_out(message, delivery, alone, exchangeable):
                        return
        except UnreadableRowError:  # the catalog logs such a row once; a worker that can read the row takes the task
            await delivery.reject(delay_s=endings.BUSY_RETRY_S, counts=False)
        except AfterimageError as error:  # a port is away: the task waits, and the row's lease may run out
            log("gpu_worker").warning("task put back", job=message.job_id, error=str(error))
            self.gate.unanswered()
            await delivery.reject(delay_s=error.retry_after_s or endings.RETRY_S, counts=False)
        except Exception as error:  # a bug must not lose the task or its place in the batch
            log("gpu_worker").error("task put back", job=message.job_id, error=repr(error), exc_info=error)
            await delivery.reject(delay_s=endings.BUSY_RETRY_S, counts=False)

    async def _carry_out(self, task: GenerateImage, delivery: Delivery, alone: bool, ordered: bool) -> bool:
        """Carry out the job of the lane whose turn it is, if `ordered` and if it matters, else the task's own.

        Return False when the job must run alone in this process; the job stays unclaimed until then. A claimed job that
        waits for others would count as present at their crash, and could be condemned in the end.
        """
        if ordered and not delivery.redelivered and (waiting := await self._turns(task, delivery.lane)):
            if await self._carry_out_next(task, delivery, waiting):
                return True
            ordered = False
        # a redelivered task resumes from a checkpoint, or belongs to another worker: do not read its state ahead
        state = ("", "") if delivery.redelivered else (task.state_key, task.state_sha256)
        with contextlib.closing(ReadAhead(self._blobs, *state)) as ahead, self.claims.holding(task.job_id):
            if (job := await self._claim(self.claims.claim(task.job_id, alone=alone))) is not None:
                if not task.only:  # from now on its task must not be exchanged
                    delivery.stand_for(GenerateImage.of(job))
                if alone or job.crashes < CRASHES_TOGETHER:
                    self._shares_of(delivery.lane).took(job.request.tenant, job.pixel_steps)
                    await self._attempt(job, delivery, ahead, previews=task.previews)
                    return True
                if await self.endings.release(job):
                    return False
        if ordered and not (delivery.redelivered and await self._needs_its_task(task.job_id)):
            # another worker runs its job with the task of a job that still waits
            waiting = await self._next_jobs(delivery.lane)
            if await self._carry_out_next(task, delivery, waiting):
                return True
        await self.endings.duplicate(task.job_id, delivery)
        return True

    async def _needs_its_task(self, job_id: str) -> bool:
        """Return whether a redelivered task may be the only one of its job: another worker claimed the job with this
        task and then lost its connection to the broker, or failed the job and wrote no dead letter yet."""
        try:
            row = await self._jobs.get(job_id)
        except NotFoundError:
            return False
        return (row.state is JobState.FAILED and not row.buried) if row.state.final else row.confirmed

    async def _turns(self, task: GenerateImage, lane: str) -> dict[str, list[str]]:
        """Return the next jobs of each tenant; none where rows had room for `ROOM_S`, so that no task waits. In order
        of arrival, return none while one tenant waits, and then none for `ALONE_S` without a look."""
        consumer = self.clip_lanes if lane in self.clip_lanes.lanes else self.lanes
        if consumer.had_room(ROOM_S):
            return {}
        now = asyncio.get_running_loop().time()
        if self._order == "arrival" and now < self._alone_until.get(lane, 0.0):
            return {}
        waiting = await self._next_jobs(lane)
        if self._order == "urgent":
            return waiting
        if len(tenants := waiting.keys() - {CHECKS}) > 1:
            self._mixed.add(lane)
        # a job whose task another tenant's job got must not wait for the task of that job
        elif lane not in self._mixed or task.job_id in [waiting[tenant][0] for tenant in tenants] or not tenants:
            self._mixed.discard(lane)
            self._alone_until[lane] = now + ALONE_S
            return {}
        return waiting

    async def _next_jobs(self, lane: str, beyond: int = 0) -> dict[str, list[str]]:
        aged = self._shares_of(lane).next_is_aged()
        return await self._prompt.next_of_each(lane, LOOKED_AT + beyond, self._order, aged)

    def _shares_of(self, lane: str) -> FairShares:
        """Return the shares of clips, or those of images: a clip's work would count for many images."""
        return self._clip_shares if lane in self.clip_lanes.lanes else self._shares

    async def _carry_out_next(self, task: GenerateImage, delivery: Delivery, waiting: dict[str, list[str]]) -> bool:
        """Carry out the next job of the tenant with the least work; return False if no job waits that no worker has
        claimed yet, or only jobs that other deliveries of this worker are claiming.

        The delivery then is the task of that job. Its own task, later in the lane, is for another job.
        """
        shares, unreadable, before = self._shares_of(delivery.lane), set[str](), frozenset[str]()
        while waiting:
            checks = waiting.pop(CHECKS, [])
            job_ids = [name for tenant in shares.order(waiting) for name in waiting[tenant]] + checks
            if (unreadable | before).issuperset(job_ids):
                return False
            for job_id in job_ids:
                if job_id in self.claims.held:  # by another delivery
                    continue
                own = job_id == task.job_id
                with self.claims.holding(job_id):
                    try:
                        job = await self._claim(self.claims.claim_new(job_id, delivery.lane, own_task=own))
                    except UnreadableRowError:
                        unreadable.add(job_id)
                        continue
                    if job is None:
                        continue
                    shares.took(job.request.tenant, job.pixel_steps)
                    delivery.stand_for(GenerateImage.of(job))
                    plan = job.plan
                    with contextlib.closing(ReadAhead(self._blobs, plan.state_key, plan.state_sha256)) as ahead:
                        await self._attempt(job, delivery, ahead, previews=own and task.previews, exchanged=not own)
                    return True
            # the list has room for all of these and one more: if it names these alone, no other job waits
            before = self.claims.held
            waiting = await self._next_jobs(delivery.lane, beyond=len(before))
        return False

    async def _claim(self, call: Coroutine[Any, Any, Job | None]) -> Job | None:
        """Claim a job. A cancelled claim may already stand in the catalog: wait for its answer, then hand the job
        back."""
        claiming = asyncio.ensure_future(call)
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            if (job := await claiming) is not None and await self._jobs.release(job.id, job.attempt):
                self.endings.handed_back += 1
            raise

    async def _attempt(
        self, job: Job, delivery: Delivery, ahead: ReadAhead, *, previews: bool, exchanged: bool = False
    ) -> None:
        METRICS.job_attempts.labels(str(delivery.redelivered).lower()).inc()
        if exchanged:  # the delivery carries the trace of another job
            tracing.adopt({})
        with trace.processing(self._bus_system, delivery.lane) as span:
            span.note("afterimage.job.id", job.id)
            span.note("afterimage.job.attempt", job.attempt)
            await self._attempted(job, delivery, ahead, previews=previews, exchanged=exchanged)

    async def _attempted(
        self, job: Job, delivery: Delivery, ahead: ReadAhead, *, previews: bool, exchanged: bool
    ) -> None:
        for older in self.attempts_at(job.id):
            older.cancel()
        attempt = Attempt(self._place(), job, ahead, previews=previews)
        self.attempts[attempt.id] = attempt
        try:
            spans = (job.exposed_from, 0.0) if job.crashes_alone else ()
            fleets = [await self.endings.patiently(partial(self._jobs.fleet, since)) for since in spans]
            if said := condemned(job, fleets):
                await self.endings.fail_for_good(attempt, said, delivery, said)
            else:
                await self.endings.attempt(attempt, delivery)
        except asyncio.CancelledError:
            await self.endings.hand_back(attempt)
            if exchanged:  # the bus would deliver the task of the other job again, and none of this one
                await delivery.reject(counts=False)
            raise
        finally:
            self.attempts.pop(attempt.id, None)
