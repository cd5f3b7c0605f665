"""Spans of messages, after OpenTelemetry's conventions for messaging."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shared.domain.messages import JobQueued, PreviewsRequested, Progress, StateLost, StateUsed
from shared.runtime import tracing
from shared.runtime.tracing import NO_SPAN, Kind, Span

if TYPE_CHECKING:  # the bus imports this module
    from shared.bus import Bus

IN_PROCESS, RABBITMQ = "inprocess", "rabbitmq"
"""Values of `messaging.system`; OpenTelemetry names the second one."""
_UNTRACED = {kind.__name__ for kind in (Progress, JobQueued, PreviewsRequested, StateUsed, StateLost)}
"""Events that may be lost: they feed figures and previews, and nothing waits for them."""


def system_of(bus: Bus) -> str:
    """Return the value of `messaging.system` for a bus."""
    return IN_PROCESS if bus.process_local else RABBITMQ


def sending(system: str, lane: str) -> Span:
    """Return the span in which a task is sent; the task carries this span as its parent."""
    return _span(system, lane, "send", "producer")


def publishing(system: str, kind: str) -> Span:
    """Return the span in which an event is published; the event carries this span as its parent."""
    return NO_SPAN if kind in _UNTRACED else _span(system, kind, "publish", "producer")


def processing(system: str, lane: str) -> Span:
    """Return the span in which a task is processed, in the trace that was adopted from its headers."""
    return _span(system, lane, "process", "consumer")


def handling(system: str, kind: str, queue: str, headers: Mapping[str, Any]) -> Span:
    """Adopt the trace of an event, and return the span of its handler. queue: name of the subscription; may be empty.

    Subscriptions without a name have none: each replica receives all events, of all requests.
    """
    tracing.adopt(headers)
    if not queue or kind in _UNTRACED:
        return NO_SPAN
    span = _span(system, kind, "process", "consumer")
    span.note("messaging.destination.subscription.name", queue)
    return span


def _span(system: str, destination: str, name: str, kind: Kind) -> Span:
    if not tracing.recording():
        return NO_SPAN
    attributes = {
        "messaging.system": system,
        "messaging.operation.name": name,
        "messaging.operation.type": "process" if kind == "consumer" else "send",
        "messaging.destination.name": destination,
    }
    return tracing.span(f"{name} {destination}", kind, attributes)
