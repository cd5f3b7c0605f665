"""A failed job's task goes to the dead letters once, whoever died in between; its row says that it is there."""

from __future__ import annotations

import asyncio

from shared.backends import Backends
from shared.bus import Delivery
from shared.clock import Clock
from shared.errors import AfterimageError
from shared.messages import JobFailed
from shared.telemetry import log
from shared.types import Job

BURIAL_S = 5.0
"""How long a failed job's burial is left to the worker that failed it; its other tasks wait so long."""


class Burial:
    """First the letter, then the note on the row: who dies in between leaves one that may be written twice, never none.
    So may two workers that look at the same moment."""

    def __init__(self, backends: Backends, clock: Clock) -> None:
        self._backends, self._clock = backends, clock
        self._one_at_a_time = asyncio.Lock()

    async def bury(self, job: Job, delivery: Delivery, reason: str) -> None:
        """The task, or while the broker is away nothing: then it comes back."""
        if not await delivery.bury(reason):
            return
        try:
            await self._backends.catalog.jobs.buried(job.id)
        except AfterimageError as error:
            log("gpu_worker").warning("a burial was not noted", job=job.id, error=str(error))

    async def once(self, job: Job, delivery: Delivery, *, own: bool) -> None:
        """A task of a job that has failed already: whoever finds its letter noted just lets it go, since what the
        sweeper had sent at each crash comes back too once it has waited under a lease. `own`: this worker's attempt was
        the one that failed."""
        left_s = job.updated_at + BURIAL_S - self._clock.now()
        if left_s > 0 and not own:
            await delivery.reject(delay_s=min(left_s, BURIAL_S), counts=False)
            return
        async with self._one_at_a_time:
            if (await self._backends.catalog.jobs.get(job.id)).buried:
                await delivery.ack()
            else:
                await self._backends.bus.publish(JobFailed(job.id, job.attempt, job.error))
                await self.bury(job, delivery, job.error)
