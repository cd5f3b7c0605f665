"""Readiness in the health service: the status of a service's name says whether it can work; the status of "" says that
the process runs.

Services reconnect by themselves to a server that was away, so restarting the process would not help. A supervisor that
restarts processes should check "", and a load balancer that sends them work should check the service's name.
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
"""Seconds between two checks of the servers, and seconds that a server has to answer."""
MISSES = 2
"""Missed checks in a row after which a server counts as away. One missed check may be a busy machine."""

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Readiness:
    """Checks the servers that services need, and reports the result to the health service."""

    def __init__(self, backends: Backends, health: Any, needs: Mapping[str, frozenset[str]]) -> None:
        """needs: full gRPC name of a service → the ports, of catalog and bus, that the service needs."""
        self._backends, self._health, self._needs = backends, health, needs
        self.away: frozenset[str] = frozenset()
        """Servers that do not answer, as the health service reports them."""
        self._missed: Counter[str] = Counter()

    async def run(self) -> None:
        """Check until cancelled; return at once when every needed port is in this process."""
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
        except Exception as error:  # checked again at the next round
            log("afterimage").error("readiness check failed", port=port, error=repr(error))
            return False
        return True

    async def _tell(self, away: frozenset[str]) -> None:
        if away == self.away:
            return
        self.away = away
        log("afterimage").warning("ready again" if not away else "not ready", away=sorted(away))
        for name, needs in self._needs.items():
            await self._health.set(name, _NOT_SERVING if needs & away else _SERVING)
