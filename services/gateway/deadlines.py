"""The rule that drops late jobs: the client set `drop_if_late`, and the deadline passed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from shared.domain.errors import AfterimageError, CancelledError, DeadlineError, JobFailedError, passes
from shared.domain.types import Job, JobState
from shared.runtime.telemetry import log

AGAIN_S = 1.0
"""Seconds between two tries to drop a job while the catalog does not answer."""


def time_left_s(job: Job, now: float) -> float | None:
    """Return the seconds until the job is dropped: ≤ 0 when it is too late, None when it is never dropped. now: the
    catalog's clock."""
    request = job.request
    if request.deadline_s is None or not request.drop_if_late or job.state.final:
        return None
    return job.created_at + request.deadline_s - now


def outcome_error(job: Job) -> AfterimageError | None:
    """Return the error for clients that wait for a final job; None when there is an image."""
    if job.state is JobState.SUCCEEDED:
        return None
    if reason := dropped_because(job):
        return DeadlineError(f"job {job.id} was dropped: {reason}")
    if job.state is JobState.FAILED:
        # `attempt` is not a count of failures: it grows with every claim, also with one that was handed back
        tried = f" after {job.failures} attempts" if job.failures > 1 and not job.crashes else ""
        return JobFailedError(f"job {job.id} failed{tried}: {job.error}")
    return CancelledError(f"job {job.id} was cancelled")


def dropped_because(job: Job) -> str:
    """Return field and rule if a job ended without an image after the deadline that its client set; else empty."""
    request, failed = job.request, job.state in (JobState.CANCELLED, JobState.FAILED)
    if not failed or request.deadline_s is None or not request.drop_if_late:
        return ""
    late = job.updated_at >= job.created_at + request.deadline_s
    return f"deadline_s: {request.deadline_s:g} s passed before the job finished" if late else ""


def late_because(job: Job) -> str:
    """Return the warning for an image that came after its client's deadline, by the catalog's clock; else empty."""
    request = job.request
    if job.state is not JobState.SUCCEEDED or request.deadline_s is None:
        return ""
    late_s = job.updated_at - job.created_at - request.deadline_s
    if late_s <= 0:
        return ""
    said = f"deadline_s: finished {late_s:.2f} s after the deadline of {request.deadline_s:g} s"
    return said if request.drop_if_late else f"{said}; set drop_if_late to cancel such requests"


class DropTimers:
    """One timer per job that may be dropped; a restart sets them again from the rows."""

    def __init__(self, drop: Callable[[str], Awaitable[object]]) -> None:
        self._drop = drop
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def arm(self, job: Job, now: float) -> None:
        left = time_left_s(job, now)
        if left is not None:
            self._in(max(left, 0.0) + 0.01, job.id)  # later, so that the row's times prove it

    def disarm(self, job_id: str) -> None:
        if (timer := self._timers.pop(job_id, None)) is not None:
            timer.cancel()

    def drop_soon(self, job_id: str) -> None:
        """Drop now, in a separate task, because the calling task may be cancelled. Retries until the catalog
        answers."""
        task = asyncio.create_task(self._dropped(job_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        self._closed = True
        for job_id in list(self._timers):
            self.disarm(job_id)

    async def _dropped(self, job_id: str) -> None:
        try:
            await self._drop(job_id)
        except AfterimageError as error:
            log("gateway").warning("job not dropped", job=job_id, error=str(error))
            if passes(error) and not self._closed:
                self._in(AGAIN_S, job_id)

    def _in(self, seconds: float, job_id: str) -> None:
        self.disarm(job_id)
        self._timers[job_id] = asyncio.get_running_loop().call_later(seconds, self._late, job_id)

    def _late(self, job_id: str) -> None:
        self._timers.pop(job_id, None)
        self.drop_soon(job_id)
