"""One dead letter for a job that failed for good, however many of its tasks come back."""

from __future__ import annotations

import asyncio

from shared.bus import Bus, Delivery
from shared.clock import Clock
from shared.messages import GenerateImage, JobFailed, encode
from shared.types import Job

BURIAL_S = 5.0
"""How long a failed job's burial is left to the worker that failed it; its other tasks wait so long."""
LETTERS = 1_000_000
"""More dead letters than there are."""


class Burial:
    """This worker's: its own deliveries bury one after the other."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus, self._clock = bus, clock
        self._burying = asyncio.Lock()

    async def once(self, job: Job, delivery: Delivery, *, own: bool) -> None:
        """Whoever finds the job's letter there just lets the task go: what the sweeper had sent at each crash comes
        back too once it has waited under a lease. Two workers that look at the same moment may bury one each; that
        none is buried cannot be. `own`: the task is of the attempt that failed the job."""
        left_s = job.updated_at + BURIAL_S - self._clock.now()
        if left_s > 0 and not own:
            await delivery.reject(delay_s=min(left_s, BURIAL_S), counts=False)
            return
        kind, body = encode(GenerateImage(job.id))
        async with self._burying:
            letters = await self._bus.dead_letters(LETTERS)
            if any((letter.kind, letter.body) == (kind, body.decode()) for letter in letters):
                await delivery.ack()
            else:
                await self._bus.publish(JobFailed(job.id, job.attempt, job.error))
                await delivery.bury(job.error)
