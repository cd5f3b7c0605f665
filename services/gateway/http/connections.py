"""Connections of the HTTP port: bounded in number, and closed when no whole request comes in time or no answer is
read."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from shared.runtime.addresses import most_connections

REQUEST_S = 10.0
"""Seconds in which the head of a request must arrive, or twice that after an answer."""
UNREAD_S, UNREAD_BYTES = 60.0, 2**16
"""Seconds in which a client must read so many bytes of the answer that waits for it."""
SHARE = 0.25
"""Share of the process's open files that HTTP connections may take."""


class Connection(H11Protocol):
    """An HTTP connection that must send the head of each request within REQUEST_S, and must go on reading
    its answer; uvicorn waits for both without end."""

    _timer: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > most_connections(SHARE):
            transport.abort()
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._reading):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()

    def _watch_reading(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._reading = self.loop.call_later(UNREAD_S, self._look_unread, unread)

    def _look_unread(self, before: int) -> None:
        """Close the connection if its client has read less than UNREAD_BYTES since `before` bytes waited."""
        if before - self.transport.get_write_buffer_size() < UNREAD_BYTES:
            self.transport.abort()
        else:
            self._watch_reading()

    def _wait(self) -> None:
        idle = self.cycle is None or self.cycle.response_complete
        unsent = self.transport.get_write_buffer_size()
        self._timer = self.loop.call_later(REQUEST_S, self._look, self.cycle, idle, unsent)

    def _look(self, last: Any, idle: bool, unsent: int) -> None:
        """Close the connection if it was idle after request `last`, none has begun since, and the client has read its
        answer or nothing of it."""
        if idle and self.cycle is last and self.transport.get_write_buffer_size() in (0, unsent):
            self.transport.abort()
        else:
            self._wait()
