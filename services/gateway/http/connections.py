"""Connections of the HTTP port: bounded in number, and closed when no whole request comes in time."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from shared.runtime.rpc_server import most_connections

REQUEST_S = 10.0
"""Seconds in which the head of a connection's next request must arrive, up to twice that after an answer."""
SHARE = 0.25
"""Share of the process's open files that HTTP connections may take."""


class Connection(H11Protocol):
    """uvicorn waits for a first request, and for the rest of a head, without end; and takes every connection."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > most_connections(SHARE):
            transport.abort()
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._timer = self.loop.call_later(REQUEST_S, self._look, self.cycle)

    def _look(self, before: Any) -> None:
        """Close the connection if no request runs, and none has begun since `before`, the last one then."""
        if self.cycle is before and (before is None or before.response_complete):
            self.transport.abort()
        else:
            self._wait()
