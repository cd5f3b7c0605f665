"""The limits of a tenant on its jobs that wait or run, and on their work (docs/adr/0029-fair-shares.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

from shared.catalog.jobs.lanes import Taken
from shared.domain.errors import InvalidRequestError, OverloadedError
from shared.runtime.settings.tenants import TenantLimits

RETRY_S = 1.0
"""Seconds after which a refused client comes back: when a job of its tenant ends is unknown."""
_NAMES = {"jobs": "jobs that wait or run", "pixel_steps": "frames × pixels × steps of the jobs that wait or run"}


class TenantUse:
    """What tenants with limits have taken: their rows in the catalog, and the requests on their way there."""

    def __init__(self, limits_of: Callable[[str], TenantLimits], taken: Callable[[str], Awaitable[Taken]]) -> None:
        """taken: returns what a tenant's rows take."""
        self._limits_of, self._taken = limits_of, taken
        self._jobs, self._pixel_steps = Counter[str](), Counter[str]()
        """Those of requests that have no rows yet."""

    async def admit(self, tenant: str, jobs: int, pixel_steps: int) -> None:
        """Take room for a request. The caller must call `arrived`, also after an error. Raises OverloadedError beyond a
        limit, and InvalidRequestError for a request that is too large even alone."""
        limits = self._limits_of(tenant)
        if limits.jobs is None and limits.pixel_steps is None:
            return
        self._count(tenant, jobs, pixel_steps)
        _check_alone(limits, jobs, pixel_steps)
        coming = self._jobs[tenant], self._pixel_steps[tenant]  # before the read: it may miss rows of these requests
        taken = await self._taken(tenant)
        _check("jobs", limits.jobs, taken.jobs + coming[0], jobs)
        _check("pixel_steps", limits.pixel_steps, taken.pixel_steps + coming[1], pixel_steps)

    def arrived(self, tenant: str, jobs: int, pixel_steps: int) -> None:
        """Count a request no longer: its rows are in the catalog, or never will be."""
        if tenant in self._jobs:
            self._count(tenant, -jobs, -pixel_steps)
            if not self._jobs[tenant]:
                del self._jobs[tenant], self._pixel_steps[tenant]

    def _count(self, tenant: str, jobs: int, pixel_steps: int) -> None:
        self._jobs[tenant] += jobs
        self._pixel_steps[tenant] += pixel_steps


def _check_alone(limits: TenantLimits, jobs: int, pixel_steps: int) -> None:
    if limits.jobs is not None and jobs > limits.jobs:
        raise InvalidRequestError("n", f"must be at most {limits.jobs}, the jobs of this tenant (tenant_limits)", jobs)
    if limits.pixel_steps is not None and pixel_steps > limits.pixel_steps:
        rule = f"frames × pixels × steps of all images must be at most {limits.pixel_steps} for this tenant"
        raise InvalidRequestError("steps", f"{rule} (tenant_limits)", pixel_steps)


def _check(name: str, limit: int | None, wanted: int, asked: int) -> None:
    if limit is not None and wanted > limit:
        said = f"{_NAMES[name]}: this tenant has, with requests on their way, {wanted - asked} and may have {limit}"
        said = f"{said} (tenant_limits), this request asks for {asked}"
        raise OverloadedError(f"{said}; retry in {RETRY_S:g} s", retry_after_s=RETRY_S)
