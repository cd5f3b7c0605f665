"""The ways in which a task ends: first the job's row, then its event, then the delivery, and last the blobs that no row
names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from services.gpu_worker.jobs import checkpoints
from services.gpu_worker.jobs.attempt import Attempt, ElsewhereError
from services.gpu_worker.jobs.claims import Claims
from shared.bus import Delivery
from shared.domain.errors import AfterimageError, CancelledError, DeadlineError, NotFoundError, passes
from shared.domain.messages import JobCancelled, JobFailed, JobSucceeded, lane_of
from shared.domain.types import Job, JobState, Plan, Result
from shared.runtime.telemetry import METRICS, log
from shared.service import Context
from shared.service.dispatch import dispatch

T = TypeVar("T")

BUSY_RETRY_S = 5.0
"""Longest delay in seconds before a duplicate of a running job comes back; less if the other worker's lease ends
earlier."""
RETRY_S = 1.0
"""First delay in seconds after a failure of the task; doubles with each failure."""
CATALOG_RETRY_S = 5.0
"""Longest pause in seconds between two tries to commit a finished job while the catalog is away or full. Shorter than a
sweep, so that the commit comes before the sweep once the catalog has room again."""
DEAD_LETTER_GRACE_S = 5.0
"""Seconds in which only the worker that failed a job writes its dead letter; the job's other tasks wait as long."""


class Endings:
    """The ways in which a task ends. Each attempt takes one; a duplicate that gets no attempt takes `duplicate`."""

    def __init__(self, context: Context, worker: str, claims: Claims) -> None:
        self._settings, self._clock, backends = context.settings, context.clock, context.backends
        self._bus, self._blobs, self._jobs = backends.bus, backends.blobs, backends.catalog.jobs
        self._worker, self._claims = worker, claims
        self._one_dead_letter = asyncio.Lock()
        self.finished = self.handed_back = 0

    async def attempt(self, attempt: Attempt, delivery: Delivery) -> None:
        """Generate the image, commit the result, publish the event, acknowledge the task; or end the attempt as its
        error says."""
        job = attempt.job
        try:
            result = await attempt.draw()
            plan = attempt.plan_as_run
            won = await self.patiently(lambda: self._jobs.finish(job.id, job.attempt, result, plan))
        except DeadlineError:
            await self.patiently(lambda: self._jobs.cancel(job.id))
            await self._bus.publish(JobCancelled(job.id))
            await self._lost(attempt, delivery)
        except CancelledError:
            await self._lost(attempt, delivery)
        except ElsewhereError as error:
            await self._moved(attempt, error.plan, delivery)
        except Exception as error:
            await (self._put_off if passes(error) else self._failed)(attempt, error, delivery)
        else:
            await (self._succeeded(attempt, result, delivery) if won else self._lost(attempt, delivery))

    async def _succeeded(self, attempt: Attempt, result: Result, delivery: Delivery) -> None:
        self.finished += 1
        METRICS.steps_saved.labels(attempt.plan.model).inc(attempt.steps_saved)
        job, picture = attempt.job, (result.picture_key, result.picture_sha256)
        event = JobSucceeded(job.id, job.attempt, self._worker, result.model, result.steps_run, *picture)
        await self._bus.publish(event)
        await delivery.ack()
        await attempt.outputs.clean_up(succeeded=True, ended=True)

    async def _lost(self, attempt: Attempt, delivery: Delivery) -> None:
        """End an attempt that no longer owns its row: the job was cancelled, or another worker claimed it. Or the
        catalog did commit this attempt's result, and its answer was lost."""
        # the lease may have run out because the catalog did not answer, not because the worker died
        if attempt.unheard:
            await self._jobs.survived(attempt.job.id, attempt.job.crashes, attempt.job.crashes_alone)
        row = await self.duplicate(attempt.job.id, delivery, attempt.job.attempt)
        mine = row is not None and (row.state, row.attempt) == (JobState.SUCCEEDED, attempt.job.attempt)
        await attempt.outputs.clean_up(succeeded=mine, ended=row is None or row.state.final)
        if row is not None and row.state is JobState.CANCELLED:
            try:
                await self._jobs.stopped(attempt.job.id, attempt.job.attempt, attempt.cost)
            except Exception as error:  # the row then lacks the cost of a cancelled job
                log("gpu_worker").warning("cost of a cancelled job not recorded", error=repr(error))

    async def _moved(self, attempt: Attempt, plan: Plan, delivery: Delivery) -> None:
        """Hand the job to the lane of another model, if only that model may run its plan.

        The row is written first, then the task is sent: the sweeper sends a task that is not sent here, and of two
        tasks the second loses the claim. The lane is never `refine`, whose only consumer may be this worker.
        """
        job, lane = attempt.job, lane_of(plan.model)
        moved = self.patiently(lambda: self._jobs.move(job.id, job.attempt, lane, plan))
        done = await dispatch(self._bus, replace(job, lane=lane, plan=plan), self._jobs.confirm, write=moved)
        if not done.written:
            await self._lost(attempt, delivery)
            return
        log("gpu_worker").info("job moved", job=job.id, lane=lane)
        if done.error is not None:
            log("gpu_worker").warning(done.trouble, job=job.id, error=str(done.error))
        await delivery.ack()
        await attempt.outputs.clean_up(succeeded=False, ended=False)

    async def _put_off(self, attempt: Attempt, error: Exception, delivery: Delivery) -> None:
        """Return the task to its lane and count no failure: the error is not the task's own (a full disk, for
        example)."""
        job, delay_s = attempt.job, getattr(error, "retry_after_s", None) or RETRY_S
        log("gpu_worker").warning(
            "attempt put off", job=job.id, attempt=job.attempt, error=str(error), again_in_s=delay_s
        )
        if await self.patiently(lambda: self._jobs.release(job.id, job.attempt)):
            await delivery.reject(delay_s=delay_s, counts=False)
            await attempt.outputs.clean_up(succeeded=False, ended=False)
        else:
            await self._lost(attempt, delivery)

    async def _failed(self, attempt: Attempt, error: Exception, delivery: Delivery) -> None:
        """Count an error of the task itself: retry a few times, then fail the job (docs/architecture.md, Crash
        accounting). The client reads the error on the job. Errors that name hosts, and bugs, go in full only to the log
        and the dead letter."""
        job, name = attempt.job, type(error).__name__
        said = f"{name}: {error.outside}" if isinstance(error, AfterimageError) else f"internal error: {name}"
        reason, bug = f"{name}: {error}", None if isinstance(error, AfterimageError) else error
        log("gpu_worker").error("attempt failed", job=job.id, attempt=job.attempt, error=reason, exc_info=bug)
        if job.failures + 1 >= self._settings.max_attempts:
            await self.fail_for_good(attempt, said, delivery, reason)
        elif await self.patiently(lambda: self._jobs.fail(job.id, job.attempt, said, final=False)):
            await delivery.reject(delay_s=RETRY_S * 2**job.failures, counts=False)
            await attempt.outputs.clean_up(succeeded=False, ended=False)
        else:
            await self._lost(attempt, delivery)

    async def fail_for_good(self, attempt: Attempt, said: str, delivery: Delivery, reason: str) -> None:
        """Fail the job for good: first the row, then the dead letter. If the worker dies in between, the task comes
        back and is dead-lettered then. said: the error on the row; reason: the error on the dead letter."""
        job = attempt.job
        if await self.patiently(lambda: self._jobs.fail(job.id, job.attempt, said, final=True)):
            await self._bus.publish(JobFailed(job.id, job.attempt, said))
            await self._dead_letter(job, delivery, reason)
            await attempt.outputs.clean_up(succeeded=False, ended=True)
        else:
            await self._lost(attempt, delivery)

    async def hand_back(self, attempt: Attempt) -> None:
        """Return the job to its lane because the worker stops; this counts neither as a failure nor as a crash."""
        attempt.cancel()
        try:
            if await self._jobs.release(attempt.job.id, attempt.job.attempt):
                self.handed_back += 1
                log("gpu_worker").info("job handed back", job=attempt.job.id, attempt=attempt.job.attempt)
                await attempt.outputs.clean_up(succeeded=False, ended=False)
        except AfterimageError as error:  # the process ends: the sweeper finds the row as after a crash
            log("gpu_worker").warning("job not handed back", job=attempt.job.id, error=str(error))

    async def release(self, job: Job) -> bool:
        """Queue a claimed job without an attempt again. A cancelled caller waits for the write, too."""
        releasing = asyncio.ensure_future(self.patiently(lambda: self._jobs.release(job.id, job.attempt)))
        try:
            return await asyncio.shield(releasing)
        except asyncio.CancelledError:
            await releasing
            raise

    async def duplicate(self, job_id: str, delivery: Delivery, attempt: int = 0) -> Job | None:
        """End a task whose job is not this worker's; return the row, None if there is none (docs/architecture.md,
        Delivery rules).

        The end of a finished job is published again. A task under another worker's live lease waits. A job that an
        unanswered claim left running is queued again. A failed job's task is dead-lettered unless that is done, but
        only if it was redelivered, or if the job failed in this `attempt`, whose commit got no answer.
        """
        try:
            job = await self._jobs.get(job_id)
        except NotFoundError:
            await delivery.ack()
            return None
        if not job.state.final:
            back = await self._claims.hand_back(job)
            left_s = 0.0 if back else job.lease_until - self._clock.now()
            await delivery.reject(delay_s=min(max(left_s, RETRY_S), BUSY_RETRY_S), counts=False)
            return job
        if job.state is JobState.SUCCEEDED:
            await self._bus.publish(JobSucceeded(job.id, job.attempt))
        if job.state is JobState.FAILED and (delivery.redelivered or job.attempt == attempt):
            await self._bury_once(job, delivery, own=job.attempt == attempt)
        else:
            await delivery.ack()
        if delivery.redelivered and not attempt:  # its worker died before it deleted the checkpoints
            await checkpoints.forget(self._blobs, job.id)
        return job

    async def _bury_once(self, job: Job, delivery: Delivery, *, own: bool) -> None:
        """Dead-letter a task of a job that failed before, unless the row says that its dead letter is there.

        The sweeper sends a task at each crash, and each comes back once it has waited under a lease. own: the job
        failed in this worker's attempt.
        """
        left_s = job.updated_at + DEAD_LETTER_GRACE_S - self._clock.now()
        if left_s > 0 and not own:
            await delivery.reject(delay_s=min(left_s, DEAD_LETTER_GRACE_S), counts=False)
            return
        async with self._one_dead_letter:
            if (await self._jobs.get(job.id)).buried:
                await delivery.ack()
            else:
                await self._bus.publish(JobFailed(job.id, job.attempt, job.error))
                await self._dead_letter(job, delivery, job.error)

    async def _dead_letter(self, job: Job, delivery: Delivery, reason: str) -> None:
        """Write the dead letter first, then the note on the row. If the worker dies in between, a second dead letter
        may be written, but one always is. While the broker is away neither is written, and the task comes back."""
        if not await delivery.bury(reason):
            return
        try:
            await self._jobs.buried(job.id)
        except AfterimageError as error:
            log("gpu_worker").warning("dead letter not noted on the row", job=job.id, error=str(error))

    async def patiently(self, write: Callable[[], Awaitable[T]]) -> T:
        """Write how a job ended; retry as long as the catalog is away or full. Otherwise the lease would run out, the
        job would count as a crash, and its image would be generated again."""
        wait_s = RETRY_S
        while True:
            try:
                return await write()
            except AfterimageError as error:
                if not passes(error):
                    raise
                log("gpu_worker").warning("job outcome not committed; trying again", error=str(error))
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, CATALOG_RETRY_S)
