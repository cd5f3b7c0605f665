"""A gate that stops a worker from taking tasks while the catalog does not answer: the worker could not claim them, and
another worker may be able to."""

from __future__ import annotations

import asyncio

from services.gpu_worker.jobs.lane_consumer import LaneConsumer
from shared.catalog import Catalog
from shared.domain.errors import AfterimageError
from shared.runtime.telemetry import log

ANSWER_S, AGAIN_S = 2.0, 1.0
"""Seconds after which a catalog without an answer counts as away; seconds between two pings."""


class CatalogGate:
    """Stop the lane consumers while the catalog is away. Without this gate, the worker would take tasks as fast as the
    others and hold each until its claim times out. Running attempts continue; `Renewal` keeps their leases."""

    def __init__(self, catalog: Catalog, *taking: LaneConsumer) -> None:
        self._catalog, self._taking = catalog.within(ANSWER_S), taking
        self._aside: asyncio.Task[None] | None = None
        self._closed = False

    def unanswered(self) -> None:
        """Ping the catalog after a call got no answer, and take no tasks while it is away."""
        if not self._closed and (self._aside is None or self._aside.done()):
            self._aside = asyncio.create_task(self._until_it_is_back())

    async def _until_it_is_back(self) -> None:
        if await self._answers():
            return
        log("gpu_worker").warning("catalog does not answer; taking no tasks")
        for taking in self._taking:
            await taking.stand_aside()
        while True:
            if await self._answers() and await self._taken_up():
                break
            await asyncio.sleep(AGAIN_S)
        log("gpu_worker").warning("catalog answers; taking tasks again")

    async def _answers(self) -> bool:
        try:
            await self._catalog.ping()
        except AfterimageError:
            return False
        return True

    async def _taken_up(self) -> bool:
        try:
            for taking in self._taking:
                await taking.come_back()
        except Exception as error:  # any error: to give up here would leave a worker that never takes a task again
            log("gpu_worker").warning("lanes not reopened; trying again", error=repr(error))
            return False
        return True

    async def close(self) -> None:
        """Stop pinging. A paused consumer stays paused."""
        self._closed = True
        if self._aside is not None:
            self._aside.cancel()
            await asyncio.gather(self._aside, return_exceptions=True)
