"""OpenTelemetry's SDK behind `shared.runtime.tracing`: sampling, batches in a thread, export over OTLP/gRPC."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shared.runtime.own_version import own_version
from shared.runtime.telemetry import log
from shared.runtime.tracing import CURRENT, Attributes, Kind, Span

CLOSE_S = 2.0
"""Seconds that the last spans have at the end of the process."""
LOG_EVERY_S = 60.0
"""Least seconds between two log lines about a collector that takes no spans."""
_W3C, _EMPTY = TraceContextTextMapPropagator(), Context()
_KINDS: Mapping[Kind, SpanKind] = {
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
    "internal": SpanKind.INTERNAL,
}


class RecordedSpan(Span):
    """A span of a sampled trace."""

    __slots__ = ("_token", "span")

    def __init__(self, span: trace.Span) -> None:
        self.span = span
        self._token = CURRENT.set(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        if kind is not None:
            self.span.set_attribute("error.type", kind.__name__)
            if not issubclass(kind, asyncio.CancelledError | GeneratorExit):
                self.span.set_status(StatusCode.ERROR)  # without the message, which may name a prompt
        self.span.end()
        CURRENT.reset(self._token)

    def note(self, name: str, value: str | int | float | list[str]) -> None:
        self.span.set_attribute(name, value)

    def rename(self, name: str) -> None:
        self.span.update_name(name)

    def fail(self, kind: str) -> None:
        self.span.set_attribute("error.type", kind)
        self.span.set_status(StatusCode.ERROR)

    def headers(self) -> dict[str, str]:
        """Return the headers that name this span as the parent."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, trace.set_span_in_context(self.span, _EMPTY))
        return carrier


class _RootSpan(RecordedSpan):
    """The span of a call that a server received; the server says whether the call failed.

    The span stays current after its block: an asynchronous generator may end the block in the context of another task,
    where the span before cannot be restored.
    """

    __slots__ = ()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        self.span.end()


class _Exporter(OTLPSpanExporter):
    """Logs what the collector did not take, in this process's form and at most every LOG_EVERY_S seconds."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint=endpoint)
        self._collector, self._log_at, self._lost = endpoint, 0.0, 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        if result is not SpanExportResult.SUCCESS:
            self._lost += len(spans)
            if time.monotonic() >= self._log_at:
                log("tracing").warning("spans not sent", collector=self._collector, lost=self._lost)
                self._log_at, self._lost = time.monotonic() + LOG_EVERY_S, 0
        return result


class Tracer:
    """The tracer of this process. It is not OpenTelemetry's global one, which a process can set only once."""

    def __init__(self, endpoint: str, ratio: float, service: str) -> None:
        """OpenTelemetry's variables OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE, OTEL_SERVICE_NAME,
        OTEL_RESOURCE_ATTRIBUTES and OTEL_BSP_* hold, too."""
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # its lines are no JSON; `_Exporter` has ours
        own = {"service.name": service, "service.namespace": "afterimage", "service.version": own_version()}
        resource = Resource.create(own).merge(OTELResourceDetector().detect())
        self.ratio = ratio
        self._provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False)  # `served` takes the sample
        self._exporter = _Exporter(endpoint)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("afterimage", own_version())

    def root(self, name: str, attributes: Attributes) -> Span:
        return _RootSpan(self._begun(name, "server", attributes))

    def child(self, name: str, kind: Kind, attributes: Attributes) -> Span:
        return RecordedSpan(self._begun(name, kind, attributes))

    def past(self, name: str, begun_s: float, ended_s: float, attributes: Attributes) -> None:
        now = time.time_ns()
        span = self._begun(name, "internal", attributes, now - int(begun_s * 1e9))
        span.end(now - int(ended_s * 1e9))

    def _begun(self, name: str, kind: Kind, attributes: Attributes, at_ns: int | None = None) -> trace.Span:
        """Begin a span below the current one, else the first one of a new trace."""
        current = CURRENT.get()
        if isinstance(current, RecordedSpan):
            parent = trace.set_span_in_context(current.span, _EMPTY)
        else:
            parent = _W3C.extract(current, _EMPTY)
        return self._tracer.start_span(name, parent, _KINDS[kind], attributes, start_time=at_ns)

    def flush(self) -> None:
        """Send what waits. Blocks."""
        self._provider.force_flush()

    def close(self) -> None:
        ending = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        ending.start()
        ending.join(CLOSE_S)
        if ending.is_alive():
            self._exporter.shutdown()  # ends a call or a pause between tries
            ending.join(CLOSE_S)
