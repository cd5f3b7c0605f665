"""Which replica maintains the cache: the one that holds the catalog's lease; the others stand by (design §8)."""

from __future__ import annotations

from shared.catalog import Catalog
from shared.clock import Clock
from shared.errors import AfterimageError, UnavailableError
from shared.telemetry import log

NAME = "cache_maintainer"


class Leadership:
    """Held from a successful `renew` for two thirds of the lease, so that it is over here before it is over there.

    In an embedded catalog nobody else can be, so it is always held.
    """

    def __init__(self, catalog: Catalog, clock: Clock, holder: str, lease_s: float) -> None:
        self._catalog, self._clock, self._holder, self._lease_s = catalog, clock, holder, lease_s
        self._until = float("-inf")
        self._away = False

    @property
    def alone(self) -> bool:
        return self._catalog.process_local

    @property
    def held(self) -> bool:
        return self.alone or self._clock.monotonic() < self._until

    def check(self) -> None:
        """UnavailableError when another may be at work: asked before deletions of blobs and writes to the index, which
        the catalog's fence does not see.

        No guarantee: a slow deletion, or a repair of the index, may last longer than what of the lease is left. Then
        two at work do no harm: whoever writes to the index last writes what the rows say (`shared.index.rebuild`), and
        what is deleted no row named any more, under keys that are never used again.
        """
        if not self.held:
            raise UnavailableError(f"{self._holder} does not maintain the cache any more", retry_after_s=1.0)

    @property
    def every_s(self) -> float:
        """How often to renew, or to ask whether the leader is gone."""
        return self._lease_s / 6

    async def renew(self) -> bool:
        """Takes or keeps the lease; whether it is held now. A catalog that is away takes nothing from us early."""
        if self.alone:
            return True
        asked_at = self._clock.monotonic()
        try:
            taken = await self._catalog.leases.take(NAME, self._holder, self._lease_s)
        except AfterimageError as error:
            if not self._away:
                log(NAME).warning("lease not renewed", error=str(error))
            self._away = True
            return self.held
        self._away = False
        self._until = asked_at + self._lease_s * 2 / 3 if taken else float("-inf")
        return taken

    async def give_up(self) -> None:
        """At a planned end, so that the next one need not wait."""
        self._until = float("-inf")
        if self.alone:
            return
        try:
            await self._catalog.leases.give_up(NAME, self._holder)
        except AfterimageError as error:  # it runs out by itself
            log(NAME).warning("lease not given up", error=str(error))
