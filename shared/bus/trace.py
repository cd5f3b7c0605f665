"""Spans of messages, after OpenTelemetry's conventions for messaging."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shared.domain.messages import Progress
from shared.runtime import tracing
from shared.runtime.tracing import Span

if TYPE_CHECKING:  # the bus imports this module
    from shared.bus import Bus

IN_PROCESS, RABBITMQ = "inprocess", "rabbitmq"
"""Values of `messaging.system`; OpenTelemetry names the second one."""
_UNTRACED = Progress.__name__
"""Kind of event that a job has several of a second."""


def system_of(bus: Bus) -> str:
    """Return the value of `messaging.system` for a bus."""
    return IN_PROCESS if bus.process_local else RABBITMQ


def sending(system: str, destination: str, name: str = "send") -> Span:
    """Return the span in which a message is sent; the message carries this span as its parent. destination: a lane, or
    the kind of an event."""
    return _span(system, destination, name, "send")


def processing(system: str, destination: str) -> Span:
    """Return the span in which a message is processed, in the trace that was adopted from its headers."""
    return _span(system, destination, "process", "process")


def handling(system: str, kind: str, queue: str, headers: Mapping[str, Any]) -> Span:
    """Adopt the trace of an event, and return the span of its handler. queue: the subscription's, or empty."""
    tracing.adopt(headers)
    span = processing(system, kind)
    span.note("messaging.destination.subscription.name", queue or "unnamed")
    return span


def _span(system: str, destination: str, name: str, operation: str) -> Span:
    if not tracing.recording() or destination == _UNTRACED:
        return tracing.NO_SPAN
    attributes = {
        "messaging.system": system,
        "messaging.operation.name": name,
        "messaging.operation.type": operation,
        "messaging.destination.name": destination,
    }
    return tracing.span(f"{name} {destination}", "producer" if operation == "send" else "consumer", attributes)
