"""OpenTelemetry's SDK behind `shared.runtime.tracing`: sampling, batches in a thread, export over OTLP/gRPC."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shared.runtime.own_version import own_version
from shared.runtime.telemetry import log
from shared.runtime.tracing import NO_SPAN, Kind, Span

CLOSE_S = 2.0
"""Seconds that the last spans have at the end of the process."""
LOG_EVERY_S = 60.0
"""Least seconds between two log lines about a collector that takes no spans."""
_KINDS: Mapping[Kind, SpanKind] = {
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
    "internal": SpanKind.INTERNAL,
}


class RecordedSpan(Span):
    """A span of a sampled trace."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: trace.Span) -> None:
        self._span, self._token = span, contexts.attach(trace.set_span_in_context(span))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        if kind is not None:
            self._span.set_attribute("error.type", kind.__name__)
            if not issubclass(kind, asyncio.CancelledError | GeneratorExit):
                self._span.set_status(StatusCode.ERROR)  # without the message, which may name a prompt
        self._span.end()
        contexts.detach(self._token)

    def note(self, name: str, value: str | int | float | list[str]) -> None:
        self._span.set_attribute(name, value)

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def fail(self, kind: str) -> None:
        self._span.set_attribute("error.type", kind)
        self._span.set_status(StatusCode.ERROR)


class _RootSpan(RecordedSpan):
    """The span of a call that a server received; the server says whether the call failed.

    The span stays current after its block: an asynchronous generator may end the block in the context of another task,
    where the span before cannot be restored.
    """

    __slots__ = ()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        self._span.end()


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
        sampler = ParentBased(TraceIdRatioBased(ratio))
        self._provider = TracerProvider(sampler, resource, shutdown_on_exit=False)
        self._exporter = _Exporter(endpoint)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("afterimage", own_version())
        self._w3c = TraceContextTextMapPropagator()

    def recording(self) -> bool:
        return trace.get_current_span().get_span_context().trace_flags.sampled

    def outgoing(self) -> dict[str, str]:
        carrier: dict[str, str] = {}
        self._w3c.inject(carrier)
        return carrier

    def adopt(self, headers: Mapping[str, str]) -> None:
        empty = contexts.Context()
        contexts.attach(self._w3c.extract(headers, empty) if headers else empty)

    def root(self, name: str, attributes: Mapping[str, str | int]) -> Span:
        span = self._tracer.start_span(name, kind=SpanKind.SERVER, attributes=attributes)
        if span.is_recording():
            return _RootSpan(span)
        contexts.attach(trace.set_span_in_context(span))  # others read from its headers that it is not sampled
        return NO_SPAN

    def child(self, name: str, kind: Kind, attributes: Mapping[str, str | int]) -> Span:
        if not self.recording():
            return NO_SPAN
        return RecordedSpan(self._tracer.start_span(name, kind=_KINDS[kind], attributes=attributes))

    def past(self, name: str, begun_s: float, ended_s: float, attributes: Mapping[str, str | int]) -> None:
        if self.recording():
            now = time.time_ns()
            span = self._tracer.start_span(name, attributes=attributes, start_time=now - int(begun_s * 1e9))
            span.end(now - int(ended_s * 1e9))

    def note(self, name: str, value: str | int | float | list[str]) -> None:
        trace.get_current_span().set_attribute(name, value)

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
