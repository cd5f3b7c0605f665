"""Fair shares of a worker: the tenant that got the least work goes first (docs/adr/0029-fair-shares.md), pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from shared.domain.urgency import AGED_EVERY

MOST_KEPT = 1000
"""Tenants above which those that are not ahead of the others are dropped."""


@dataclass(slots=True)
class _Share:
    ends: float = 0.0
    """Virtual time at which the tenant's last job ends; the next begins then."""
    jobs: int = 0


class FairShares:
    """Start-time fair queueing between tenants of equal weight (Goyal et al., SIGCOMM 1996), as VTC does for tokens
    (Sheng et al., OSDI 2024).

    Each tenant has a virtual time, which its jobs advance by their work. The tenant with the least goes first. The
    common time is the start of the job that was taken last, and no tenant begins before it, so that a pause earns
    nothing. While two tenants wait, the work that they get differs by at most the largest job of each. A tenant that
    begins to wait is served after at most one job of each other tenant.
    """

    def __init__(self) -> None:
        self._shares: dict[str, _Share] = {}
        self._now = 0.0

    def order(self, waiting: Collection[str]) -> list[str]:
        """Return the waiting tenants, the one with the least work first."""
        return sorted(waiting, key=lambda tenant: (self._start(tenant), tenant))

    def took(self, tenant: str, work: float) -> None:
        """Count a job of this work, which a worker begins now."""
        self._now = self._start(tenant)
        share = self._shares.setdefault(tenant, _Share())
        share.ends, share.jobs = self._now + work, share.jobs + 1
        if len(self._shares) > MOST_KEPT:
            self._shares = {name: one for name, one in self._shares.items() if one.ends > self._now}

    def next_is_aged(self) -> list[str]:
        """Return the tenants whose next job is to be the oldest that has aged: one in AGED_EVERY of each."""
        return [name for name, one in self._shares.items() if one.jobs % AGED_EVERY == AGED_EVERY - 1]

    def _start(self, tenant: str) -> float:
        share = self._shares.get(tenant)
        return self._now if share is None else max(share.ends, self._now)
