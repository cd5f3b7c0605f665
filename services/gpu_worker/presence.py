"""Reports to the catalog that this worker lives and how long it held jobs: the fleet's crash rate is made of that."""

from __future__ import annotations

import asyncio

from services.gpu_worker.claims import Claims
from services.gpu_worker.turns import Turns
from shared.catalog import Catalog
from shared.catalog.exposure import RENEWALS
from shared.ids import new_id
from shared.telemetry import log


class Process:
    """What the workers of one process share, because they crash together: which job runs alone, and one row in the
    catalog. With a row each, a job that kills the process would look like one of several that crash alike."""

    def __init__(self) -> None:
        self.id, self.turns = new_id(), Turns()
        self.claims: set[Claims] = set()

    @property
    def holds(self) -> bool:
        """Whether the end of the process would be a crash: one of its workers claims or holds a job."""
        return any(claims.holds for claims in self.claims)


class Presence:
    """One small write as the first job comes, then one every third of a lease while the worker holds a job."""

    def __init__(self, catalog: Catalog, claims: Claims, lease_s: float, process: Process) -> None:
        process.claims.add(claims)
        self._process = process
        self._claims, self._lease_s, self._every_s = claims, lease_s, lease_s / RENEWALS
        self._jobs = catalog.within(self._every_s).jobs
        self._reported, self._reported_s = False, 0.0

    async def run(self) -> None:
        """Report until cancelled, and once more then."""
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
        except Exception as error:  # the next report has these seconds too
            self._claims.busy.set()
            log("gpu_worker").warning("worker not reported", error=repr(error))
