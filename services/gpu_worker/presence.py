"""Reports to the catalog that this worker lives and how long it held jobs: the fleet's crash rate is made of that."""

from __future__ import annotations

import asyncio

from services.gpu_worker.claims import Claims
from shared.catalog import Catalog
from shared.catalog.exposure import RENEWALS
from shared.telemetry import log


class Presence:
    """One small write as the first job comes, then one every third of a lease while the worker holds a job."""

    def __init__(self, catalog: Catalog, claims: Claims, lease_s: float) -> None:
        self._claims, self._lease_s, self._every_s = claims, lease_s, lease_s / RENEWALS
        self._jobs = catalog.within(self._every_s).jobs
        self._reported, self._reported_s = False, 0.0

    async def run(self) -> None:
        """Report until cancelled, and once more then."""
        try:
            while True:
                await self._claims.busy.wait()
                await self._report(holds=self._claims.holds)
                await asyncio.sleep(self._every_s)
        finally:
            if self._reported:
                await self._report(holds=False)

    async def _report(self, *, holds: bool) -> None:
        """holds: whether the worker's end would be a crash."""
        if not holds:
            self._claims.busy.clear()
        busy_s = self._claims.busy_s
        try:
            more_s, lease_s = busy_s - self._reported_s, self._lease_s if holds else 0.0
            await self._jobs.report_worker(self._claims.holder, more_s, lease_s)
            self._reported, self._reported_s = True, busy_s
        except Exception as error:  # the next report has these seconds too
            self._claims.busy.set()
            log("gpu_worker").warning("worker not reported", error=repr(error))
