"""A collector of traces: the OTLP/gRPC service, whose spans a test can read as a tree."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps every span that it receives."""

    def __init__(self) -> None:
        self.address = ""
        self.requests: list[Any] = []
        self.spans: list[Any] = []

    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 — gRPC names its methods
        self.requests.append(request)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def edges(self) -> set[tuple[str, str]]:
        """Names of the parent and the span, for every span; '' for a parent that is elsewhere or none."""
        names = {span.span_id: span.name for span in self.spans}
        return {(names.get(span.parent_span_id, ""), span.name) for span in self.spans}

    def of(self, trace_id: bytes) -> Collector:
        """Return the spans of one trace."""
        found = Collector()
        found.spans = [span for span in self.spans if span.trace_id == trace_id]
        return found

    def one(self, name: str) -> Any:
        """Return the span with this name."""
        (found,) = (span for span in self.spans if span.name == name)
        return found


def attributes(span: Any) -> dict[str, Any]:
    """Return the span's attributes, without their types."""
    return {one.key: _value(one.value) for one in span.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@contextlib.asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    """Serve on a free port."""
    server, it = grpc.aio.server(), Collector()
    add: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add(it, server)
    it.address = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield it
    finally:
        await server.stop(None)
