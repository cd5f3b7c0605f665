"""Two loops that run three times per lease: one renews the leases of the jobs in hand, one reports the worker
itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from services.gpu_worker.jobs.attempt import Attempt
from services.gpu_worker.jobs.claims import Claims
from services.gpu_worker.jobs.process import WorkerProcess
from shared.catalog import Catalog
from shared.catalog.jobs.exposure import RENEWALS
from shared.runtime.telemetry import log

AGAIN_S = 1.0
"""Seconds between tries while the catalog does not answer, so that leases are renewed before the sweeper runs again."""


class Renewal:
    """Renew the leases of the jobs in hand, and repair unanswered claims, which other processes would count as
    crashes."""

    def __init__(self, catalog: Catalog, claims: Claims, attempts: Mapping[str, Attempt], lease_s: float) -> None:
        """attempts: the attempts in hand, a live mapping."""
        self._claims, self._attempts, self._lease_s = claims, attempts, lease_s
        self._every_s = lease_s / RENEWALS
        self._jobs = catalog.within(self._every_s).jobs  # an answer after the lease is useless
        self._away = False

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            await asyncio.sleep(min(self._every_s, AGAIN_S) if self._away else self._every_s)
            answered = await asyncio.gather(*(self._renewed(attempt) for attempt in [*self._attempts.values()]))
            self._away = not all([*answered, await self._repaired()])

    async def _renewed(self, attempt: Attempt) -> bool:
        """Renew one lease; return whether the catalog answered."""
        try:
            if await self._jobs.renew(attempt.job.id, attempt.job.attempt, self._lease_s):
                attempt.unheard = False
            else:
                attempt.cancel()
        except Exception as error:
            attempt.unheard = True
            self._say(error, job=attempt.job.id)
            return False
        return True

    async def _repaired(self) -> bool:
        try:
            async with asyncio.timeout(self._every_s):
                await self._claims.repair()
        except Exception as error:
            self._say(error)
            return False
        return True

    def _say(self, error: Exception, **of: str) -> None:
        if not self._away:
            log("gpu_worker").warning("lease not renewed", error=repr(error), **of)
        self._away = True


class Presence:
    """Report the worker to the catalog: one small write when the first job comes, then one every third of a lease while
    the worker holds a job."""

    def __init__(self, catalog: Catalog, claims: Claims, lease_s: float, process: WorkerProcess) -> None:
        process.claims.add(claims)
        self._process = process
        self._claims, self._lease_s, self._every_s = claims, lease_s, lease_s / RENEWALS
        self._jobs = catalog.within(self._every_s).jobs
        self._reported, self._reported_s = False, 0.0

    async def run(self) -> None:
        """Report until cancelled, then once more."""
        try:
            while True:
                await self._claims.busy.wait()
                await self._report()
                await asyncio.sleep(self._every_s)
        finally:
            self._process.claims.discard(self._claims)
            if self._reported:
                await self._report()

    async def _report(self) -> None:
        if not self._claims.holds:
            self._claims.busy.clear()
        busy_s = self._claims.busy_s
        try:
            more_s, lease_s = busy_s - self._reported_s, self._lease_s if self._process.holds else 0.0
            await self._jobs.report_worker(self._process.id, more_s, lease_s)
            self._reported, self._reported_s = True, busy_s
        except Exception as error:  # the next report includes these seconds
            self._claims.busy.set()
            log("gpu_worker").warning("worker not reported", error=repr(error))
