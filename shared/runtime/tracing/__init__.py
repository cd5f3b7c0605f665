"""Traces of requests over gRPC, HTTP and the bus; without `trace_endpoint` OpenTelemetry is not even imported.

A call that a server receives begins a trace, or continues the one that its W3C `traceparent` names. All other spans
need a sampled trace, so that background work makes none (ADR 28). An unsampled trace is its headers and nothing else:
most requests pay for these alone.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, Self

from shared.domain.errors import ConfigurationError
from shared.runtime.settings import Settings

if TYPE_CHECKING:  # OpenTelemetry is imported by a process that sends traces
    from shared.runtime.tracing.otlp import RecordedSpan, Tracer

HEADERS = ("traceparent", "tracestate")
MOST_STATE = 512
"""Characters of a `tracestate` that is passed on, as W3C Trace Context §3.3.1.5 asks for."""
Kind = Literal["server", "client", "producer", "consumer", "internal"]
Attributes = Mapping[str, str | int]
_NONE: Mapping[str, str] = {}
_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_tracer: Tracer | None = None


class Span:
    """A span that is current in its `with` block. This class records nothing; `otlp.RecordedSpan` does."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        return

    def note(self, name: str, value: str | int | float | list[str]) -> None:
        """Set an attribute. Prompts, images, keys and texts of errors must not be values."""

    def rename(self, name: str) -> None:
        """Replace the name of the span."""

    def fail(self, kind: str) -> None:
        """Mark the span as failed. kind: class or code of the error."""


NO_SPAN = Span()
CURRENT: ContextVar[RecordedSpan | Mapping[str, str]] = ContextVar("trace", default=_NONE)
"""The current span, else the headers of a trace that is not sampled, begins elsewhere, or is none."""


def open_tracing(settings: Settings, service: str) -> Tracer | None:
    """Send traces from now on, if `trace_endpoint` is set. service: name of the process in traces. Raises
    ConfigurationError without the extra `tracing`.

    A collector that is away delays nothing: batches leave in a thread, and beyond a bounded queue spans are dropped.
    """
    if not settings.trace_endpoint:
        return None
    try:
        from shared.runtime.tracing.otlp import Tracer
    except ImportError as error:
        raise ConfigurationError(f"trace_endpoint: {error}; install afterimage[tracing]") from error
    tracer = Tracer(settings.trace_endpoint, settings.trace_ratio, service)
    use(tracer)
    return tracer


def use(tracer: Tracer | None) -> None:
    """Record spans with this tracer from now on; None: record none."""
    global _tracer
    _tracer = tracer


def close_tracing(tracer: Tracer | None) -> None:
    """Send what waits, within `otlp.CLOSE_S` seconds, and trace no more. Blocks."""
    if tracer is not None:
        if _tracer is tracer:
            use(None)
        tracer.close()


def tracing() -> bool:
    """Return whether this process sends traces."""
    return _tracer is not None


def recording() -> bool:
    """Return whether a span that begins now would be recorded: the current trace is sampled."""
    if _tracer is None:
        return False
    current = CURRENT.get()
    return isinstance(current, Span) or _sampled(current)


def outgoing() -> dict[str, str]:
    """Return the headers of the current trace; empty outside a trace."""
    current = CURRENT.get()
    return current.headers() if isinstance(current, Span) else dict(current)


def adopt(headers: Mapping[str, Any]) -> None:
    """Continue the headers' trace in this asyncio task and in tasks that it starts; no trace if the headers name
    none."""
    CURRENT.set(_carried(headers))


def served(name: str, headers: Mapping[str, Any], attributes: Attributes) -> Span:
    """Return the span of a call that a server received, in the trace of its headers, else in a new trace.

    `trace_ratio` is the share of new traces that are sampled. The span stays current until the asyncio task ends, which
    must belong to this call.
    """
    if _tracer is None:
        return NO_SPAN
    carried = _carried(headers)
    if not carried and random.random() >= _tracer.ratio:
        # the services that this call reaches read there that it is not sampled
        carried = {"traceparent": f"00-{random.getrandbits(128):032x}-{random.getrandbits(64) | 1:016x}-00"}
    CURRENT.set(carried)
    return NO_SPAN if carried and not _sampled(carried) else _tracer.root(name, attributes)


def span(name: str, kind: Kind = "internal", attributes: Attributes = _NONE) -> Span:
    """Return a span below the current one; NO_SPAN outside a sampled trace."""
    return _tracer.child(name, kind, attributes) if _tracer is not None and recording() else NO_SPAN


def past(name: str, begun_s: float, ended_s: float, attributes: Attributes = _NONE) -> None:
    """Record a span below the current one that began and ended this many seconds ago."""
    if _tracer is not None and recording():
        _tracer.past(name, begun_s, ended_s, attributes)


def note(name: str, value: str | int | float | list[str]) -> None:
    """Set an attribute of the current span; see `Span.note`."""
    if isinstance(current := CURRENT.get(), Span):
        current.note(name, value)


def _carried(headers: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the headers of a trace; empty where they name none, or a broken one. They are a caller's text, and go on
    in gRPC metadata, which takes ASCII alone."""
    if "traceparent" not in headers or (found := _PARENT.match(str(headers["traceparent"]))) is None:
        return _NONE
    state = str(headers.get("tracestate", ""))
    passes = state and len(state) <= MOST_STATE and state.isascii() and state.isprintable()
    return {"traceparent": found[0], "tracestate": state} if passes else {"traceparent": found[0]}


def _sampled(carried: Mapping[str, str]) -> bool:
    """Return the last bit of the flags."""
    return bool(carried) and int(carried["traceparent"][-1], 16) % 2 == 1
