"""Whether a service can do its work: its own name in the health service says so, while "" says that the process lives.

A server that is away comes back, and every service finds it again by itself: starting the process anew would mend
nothing. So what restarts processes asks for "", and what sends work to them asks for the service by name.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from grpc_health.v1 import health_pb2

from shared.domain.errors import AfterimageError
from shared.runtime.telemetry import log
from shared.service.backends import Backends

EVERY_S, ANSWER_S = 2.0, 2.0
"""How often the servers are asked, and how long they may take."""
MISSES = 2
"""One that was missed so often, one time after the other, is away: once may be a machine that is busy."""

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Readiness:
    """Asks the servers that services need, and tells the health service what came of it."""

    def __init__(self, backends: Backends, health: Any, needs: Mapping[str, frozenset[str]]) -> None:
        """`needs`: by each service's full gRPC name the ports, of catalog and bus, without which it can do nothing."""
        self._backends, self._health, self._needs = backends, health, needs
        self._away: frozenset[str] = frozenset()
        self._missed: Counter[str] = Counter()

    async def run(self) -> None:
        """Until cancelled; returns at once where nothing is needed that could be away."""
        wanted = frozenset[str]().union(*self._needs.values())
        while shared := {port for port in wanted if not getattr(self._backends, port).process_local}:
            await asyncio.sleep(EVERY_S)
            for port in shared:
                self._missed[port] = 0 if await self._answers(port) else self._missed[port] + 1
            await self._tell(frozenset({port for port in shared if self._missed[port] >= MISSES}))

    async def _answers(self, port: str) -> bool:
        if port == "bus":
            return self._backends.bus.up
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._backends.catalog.ping()
        except (AfterimageError, TimeoutError):
            return False
        except Exception as error:  # whatever it is, it is asked again
            log("afterimage").error("no answer can be told", port=port, error=repr(error))
            return False
        return True

    async def _tell(self, away: frozenset[str]) -> None:
        if away == self._away:
            return
        self._away = away
        log("afterimage").warning("ready again" if not away else "not ready", away=sorted(away))
        for name, needs in self._needs.items():
            await self._health.set(name, _NOT_SERVING if needs & away else _SERVING)
