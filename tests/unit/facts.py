"""Waiting for facts to be heard, however busy the machine is."""

from __future__ import annotations

import asyncio

from shared.bus import Bus
from shared.bus.inprocess import InProcessBus

WITHIN_S = 60.0


async def heard(bus: Bus) -> None:
    """Until every fact that was published, and those that handlers published on hearing them, were handled."""
    assert isinstance(bus, InProcessBus)
    async with asyncio.timeout(WITHIN_S):
        # a subscription's event is set from a fact's arrival until its handler has nothing left to do
        while any(queue.facts or queue.ready.is_set() for queue, _ in bus._subscriptions):
            await asyncio.sleep(0.002)
