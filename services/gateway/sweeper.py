"""The sweeper: record in the catalog which tasks were sent, and send again those that a crash left unsent or unfinished
(docs/architecture.md, Delivery rules)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from shared.bus import Bus
from shared.catalog import Catalog
from shared.catalog.jobs.sweeping import NEVER_S
from shared.domain.errors import AfterimageError
from shared.domain.types import Job
from shared.runtime.clock import Clock, SystemClock
from shared.runtime.telemetry import log
from shared.service.dispatch import dispatch

SLEPT_S = 5.0
"""Seconds by which the wall clock may gain on the monotonic clock between sweeps. More means that the machine was
suspended, or that its clock was set."""
ANSWER_S = 5.0
"""Seconds after which a catalog without an answer counts as away."""


class Sweeper:
    """Send a job's task again after a crash or a lost message. Duplicates lose the claim, so a needless duplicate costs
    only the message.

    lease_s: time for workers to renew after a suspend, or after the catalog was away, when leases ran out without a
    crash.

    resend_s: a job that waits longer is sent again even if the broker confirmed its task, because the task may have
    been dead-lettered.

    reroute: moves jobs that wait in lanes without consumers; called after each sweep, whether or not the sweep failed.
    """

    def __init__(
        self,
        catalog: Catalog,
        bus: Bus,
        every_s: float,
        on_requeued: Callable[[Job], None],
        *,
        lease_s: float = 0.0,
        resend_s: float = NEVER_S,
        clock: Clock | None = None,
        reroute: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._reroute = reroute or _nothing
        self._impatient, self._away = catalog.within(ANSWER_S), False
        self._catalog, self._bus, self._every_s, self._on_requeued = catalog, bus, every_s, on_requeued
        self._lease_s, self._clock = lease_s, clock or SystemClock()
        # an in-process bus loses nothing while the process lives
        self._resend_s = NEVER_S if bus.process_local else resend_s

    async def recover(self) -> int:
        """Embedded start: queue again every job that the last process had queued or running; return how many."""
        return await self._send(await self._catalog.jobs.recover())

    async def sweep(self) -> int:
        """Send jobs that were committed but not confirmed, jobs whose lease ran out, and jobs that wait very long,
        whose task may be lost. Return how many were sent."""
        jobs = self._catalog.jobs.to_requeue(unconfirmed_after_s=self._every_s, anyhow_after_s=self._resend_s)
        return await self._send(await jobs)

    async def run(self) -> None:
        """Sweep until cancelled. An error is logged and stops nothing else; the next sweep tries again."""
        while True:
            lead_s = self._clock.now() - self._clock.monotonic()
            await asyncio.sleep(self._every_s)
            if self._clock.now() - self._clock.monotonic() - lead_s > SLEPT_S:
                await self._let_renew("the machine was suspended or its clock set")
            if await self._catalog_is_there():
                await self._go_round()

    async def _let_renew(self, why: str) -> None:
        log("gateway").info(f"{why}; workers renew their leases first", wait_s=self._lease_s)
        await asyncio.sleep(self._lease_s)

    async def _catalog_is_there(self) -> bool:
        try:
            await self._impatient.ping()
        except AfterimageError as error:
            self._away = True
            log("gateway").warning("sweep put off", error=str(error))
            return False
        if self._away:
            self._away = False
            await self._let_renew("the catalog was away")
        return True

    async def _go_round(self) -> None:
        away = ""
        for step in (self._sweep, self._reroute):
            try:
                await step()
            except AfterimageError as error:  # broker or catalog is away; the sweeper continues
                away = away or str(error)
            except Exception as error:
                log("gateway").error("sweep failed", error=repr(error), exc_info=error)
        if away:
            log("gateway").warning("sweep put off", error=away)

    async def _sweep(self) -> None:
        if sent := await self.sweep():
            log("gateway").warning("requeued jobs", count=sent)

    async def _send(self, jobs: Sequence[Job]) -> int:
        """Send these jobs' tasks and confirm those that were sent. The others stay unconfirmed for the next sweep.

        A lane that takes no task does not hold up other lanes. The first lane's error is raised when all lanes are
        done.
        """
        sent: list[str] = []
        errors: dict[str, AfterimageError] = {}

        async def note(job_ids: Sequence[str]) -> None:
            sent.extend(job_ids)

        try:
            for job in jobs:
                if job.lane in errors:
                    continue
                if (error := (await dispatch(self._bus, job, note)).error) is not None:
                    log("gateway").warning("lane takes no tasks", lane=job.lane, error=str(error))
                    errors[job.lane] = error
                    continue
                self._on_requeued(job)
        finally:
            if sent:
                await self._catalog.jobs.confirm(sent)
        if errors:
            raise next(iter(errors.values()))
        return len(sent)


async def _nothing() -> None:
    """The default of `reroute`: move nothing."""


class Confirmer:
    """A batched record in the catalog, off the request's path, of tasks that the broker has. A task whose record is
    lost is sent once more."""

    def __init__(self, catalog: Catalog, every_s: float) -> None:
        self._catalog, self._every_s = catalog, every_s
        self._sent: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    async def confirm(self, job_ids: Sequence[str]) -> None:
        """Add to the next batch, and return at once."""
        self._sent += job_ids
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._confirm_soon())

    async def close(self) -> None:
        self._closing.set()
        if self._task is not None:
            await self._task

    async def _confirm_soon(self) -> None:
        while self._sent:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), self._every_s)
            batch, self._sent = self._sent, []
            try:
                await self._catalog.jobs.confirm(batch)
            except AfterimageError as error:
                log("gateway").warning("jobs not confirmed; the sweeper sends them again", error=str(error))
