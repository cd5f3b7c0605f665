"""Searches of the console take turns with the plans of their tenant."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from services.gateway.caller import Caller
from services.gateway.console.similar import Similar
from shared.domain.errors import ConfigurationError


class Nowhere:
    """A context that knows no service, and counts who asks for one."""

    asked = 0

    def stub(self, *_: Any) -> Any:
        self.asked += 1
        raise ConfigurationError("no embedder")


async def test_searches_wait_for_the_places_of_their_tenants_plans() -> None:
    """A flood of them kept the embedder from the requests of others, whose timeouts opened the breaker for all."""
    places, context = {"flood": asyncio.Semaphore(0), "quiet": asyncio.Semaphore(1)}, Nowhere()
    similar = Similar(context, None, places.__getitem__)  # type: ignore[arg-type]
    flood = [asyncio.create_task(similar.jobs("a fox", Caller("flood"))) for _ in range(8)]
    await asyncio.sleep(0)
    with pytest.raises(ConfigurationError):
        await similar.jobs("a fox", Caller("quiet"))
    assert context.asked == 1
    places["flood"].release()
    ended = await asyncio.gather(*flood, return_exceptions=True)
    assert context.asked == 1 + len(ended)
