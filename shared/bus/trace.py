"""W3C trace context of a message: OpenTelemetry's if installed, otherwise the headers as received."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

try:
    from opentelemetry import context as _context
    from opentelemetry import propagate as _propagate
except ImportError:
    otel: Any = None
else:
    otel = (_propagate, _context)

HEADERS = ("traceparent", "tracestate")
_NONE: Mapping[str, str] = {}
_CARRIED: ContextVar[Mapping[str, str]] = ContextVar("trace_headers", default=_NONE)


def outgoing() -> dict[str, str]:
    """Return the headers of the current trace; empty outside a trace."""
    if otel is None:
        return dict(_CARRIED.get())
    carrier: dict[str, str] = {}
    otel[0].inject(carrier)
    return carrier


def adopt(headers: Mapping[str, Any]) -> None:
    """Continue the headers' trace in this asyncio task and in tasks that it starts; no trace if the headers name
    none."""
    carried = {name: str(headers[name]) for name in HEADERS if name in headers}
    _CARRIED.set(carried)
    if otel is not None:
        propagator, context = otel
        context.attach(propagator.extract(carried, context=context.Context()))
