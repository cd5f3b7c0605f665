"""A worker that cannot reach the catalog takes no tasks: it can claim none, and another worker may."""

from __future__ import annotations

import asyncio

from services.gpu_worker.jobs.lane_consumer import LaneConsumer
from shared.catalog import Catalog
from shared.domain.errors import AfterimageError
from shared.runtime.telemetry import log

ANSWER_S, AGAIN_S = 2.0, 1.0
"""A catalog that takes longer to say that it is there is away; and between two questions."""


class CatalogGate:
    """Without it such a worker would draw tasks from their lane as fast as the others, and hold each for as long as a
    claim waits for its answer. What it has in hand it goes on drawing; its leases are the renewal's business."""

    def __init__(self, catalog: Catalog, taking: LaneConsumer) -> None:
        self._catalog, self._taking = catalog.within(ANSWER_S), taking
        self._aside: asyncio.Task[None] | None = None
        self._closed = False

    def unanswered(self) -> None:
        """Somebody got no answer, perhaps of the catalog: it is asked; while it is away tasks are left to others."""
        if not self._closed and (self._aside is None or self._aside.done()):
            self._aside = asyncio.create_task(self._until_it_is_back())

    async def _until_it_is_back(self) -> None:
        if await self._answers():
            return
        log("gpu_worker").warning("the catalog does not answer; tasks are left to others")
        await self._taking.stand_aside()
        while True:
            if await self._answers() and await self._taken_up():
                break
            await asyncio.sleep(AGAIN_S)
        log("gpu_worker").warning("the catalog answers; taking tasks again")

    async def _answers(self) -> bool:
        try:
            await self._catalog.ping()
        except AfterimageError:
            return False
        return True

    async def _taken_up(self) -> bool:
        try:
            await self._taking.come_back()
        except Exception as error:  # whatever it is, giving up here would leave a worker that takes nothing any more
            log("gpu_worker").warning("tasks not taken yet", error=repr(error))
            return False
        return True

    async def close(self) -> None:
        """It stays where it is: nobody is to take anything any more."""
        self._closed = True
        if self._aside is not None:
            self._aside.cancel()
            await asyncio.gather(self._aside, return_exceptions=True)
