"""Elect one replica of a service: the holder of the catalog's lease leads, the others stand by.

Source: docs/architecture.md, Services.
"""

from __future__ import annotations

from os import getpid
from socket import gethostname

from shared.catalog import Catalog
from shared.domain.errors import AfterimageError, UnavailableError
from shared.domain.ids import new_id
from shared.runtime.clock import Clock
from shared.runtime.telemetry import log

NEVER = float("-inf")


class Leadership:
    """Leadership of one replica, for two thirds of the lease after each successful `renew`.

    So the holder's clock ends the leadership before the catalog's clock ends the lease. With an embedded catalog, which
    no other process uses, the leadership never ends.
    """

    def __init__(self, service: str, catalog: Catalog, clock: Clock, lease_s: float) -> None:
        self._service, self._catalog, self._clock, self._lease_s = service, catalog, clock, lease_s
        self._holder = f"{gethostname()}-{getpid()}-{new_id()}"
        self._until = NEVER
        self._may_hold = self._away = False
        """The catalog may name this replica: it took the lease, or a `take` got no answer."""

    @property
    def alone(self) -> bool:
        return self._catalog.process_local

    @property
    def held(self) -> bool:
        return self.alone or self._clock.monotonic() < self._until

    @property
    def fenced(self) -> Catalog:
        """The catalog, which refuses this replica's writes once another replica holds the lease."""
        return self._catalog.fenced(self._service, self._holder)

    def check(self) -> None:
        """Raise UnavailableError when another replica may lead.

        Call this before writes that the catalog's fence does not cover, such as deletions of blobs and writes to the
        index. The check is no guarantee: a slow deletion or a repair of the index may outlast the lease. Two leaders at
        once do no harm: the last write to the index follows the rows (`shared.index.rebuild`), and no row names a
        deleted blob, whose key is never used again.
        """
        if not self.held:
            raise UnavailableError(
                f"{self._holder} does not lead {self._service} any more; try again", retry_after_s=1.0
            )

    @property
    def every_s(self) -> float:
        """Seconds between two calls of `renew`, for the leader and for standbys."""
        return self._lease_s / 6

    async def renew(self) -> bool:
        """Take or keep the lease; return whether it is held now. A catalog that is away ends no lease early."""
        if self.alone:
            return True
        asked_at, self._may_hold = self._clock.monotonic(), True
        try:
            taken = await self._catalog.leases.take(self._service, self._holder, self._lease_s)
        except AfterimageError as error:
            if not self._away:
                log(self._service).warning("lease not renewed", error=str(error))
            self._away = True
            return self.held
        self._away, self._may_hold = False, taken
        self._until = asked_at + self._lease_s * 2 / 3 if taken else NEVER
        return taken

    async def give_up(self) -> None:
        """End the lease at a planned stop, so that the next leader need not wait; do nothing if the lease ran out."""
        until, self._until = self._until, NEVER
        may_hold, self._may_hold = self._may_hold, False
        ran_out = until != NEVER and self._clock.monotonic() >= until + self._lease_s / 3
        if self.alone or not may_hold or ran_out:
            return
        try:
            await self._catalog.leases.give_up(self._service, self._holder)
        except AfterimageError as error:  # the lease runs out by itself
            log(self._service).warning("lease not given up", error=str(error))
