"""The standard gRPC health service, which callers without a key may use: a bounded number of them may watch it."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shared.domain.errors import OverloadedError
from shared.runtime import rpc, rpc_server

MOST_WATCHES = 256
"""Open calls of Watch on one process. Clients inside a cluster hold one per connection; probes use Check."""
_ANSWER = health_pb2.HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):
    """Statuses by full service name; the name "" is the process.

    grpc_health's own servicer keeps a row for every name that a caller makes up, has no limit of watches, and forgets
    the other watchers of a name when one of them leaves.
    """

    def __init__(self) -> None:
        self._statuses: dict[str, Any] = {"": _ANSWER.SERVING}
        self._changed = asyncio.Event()
        self.watches = 0
        self._ending = False

    async def set(self, name: str, status: Any) -> None:
        """Set a service's status and tell the watchers; no effect after `enter_graceful_shutdown`."""
        if not self._ending:
            self._statuses[name] = status
            self._tell()

    async def enter_graceful_shutdown(self) -> None:
        """Report every service as not serving, for good."""
        self._ending = True
        self._statuses = dict.fromkeys(self._statuses, _ANSWER.NOT_SERVING)
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:
        status = self._statuses.get(request.service)
        if status is None:
            context.set_code(grpc.StatusCode.NOT_FOUND)
        return _ANSWER(status=status)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:
        if self.watches >= MOST_WATCHES:
            rule = f"{MOST_WATCHES} watches are open, which is the most; use Check"
            rpc_server.end_with(rpc.to_status(OverloadedError(rule)), context)
            return
        self.watches += 1
        last = None
        try:
            while True:
                changed, status = self._changed, self._statuses.get(request.service, _ANSWER.SERVICE_UNKNOWN)
                if status != last:
                    last = status
                    await context.write(_ANSWER(status=status))
                await changed.wait()
        finally:
            self.watches -= 1
