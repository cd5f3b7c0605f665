"""W3C trace context beside a message: OpenTelemetry's own where it is installed, else the header as it came."""

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
    """Headers naming the trace that this code runs in; empty outside of one."""
    if otel is None:
        return dict(_CARRIED.get())
    carrier: dict[str, str] = {}
    otel[0].inject(carrier)
    return carrier


def adopt(headers: Mapping[str, Any]) -> None:
    """From here on this task, and those it starts, run in the trace that the headers name; in none when they do not."""
    carried = {name: str(headers[name]) for name in HEADERS if name in headers}
    _CARRIED.set(carried)
    if otel is not None:
        propagator, context = otel
        context.attach(propagator.extract(carried, context=context.Context()))
