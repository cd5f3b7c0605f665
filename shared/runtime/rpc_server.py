"""A gRPC server that bears hostile clients, and whose handlers end with the status of their error."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from shared.domain.errors import AfterimageError, InvalidRequestError
from shared.runtime import rpc, tracing
from shared.runtime.addresses import most_connections
from shared.runtime.telemetry import METRICS, log

HANDSHAKE_S = 5.0
"""Seconds until a connection that says nothing is closed."""
IDLE_S = 600.0
"""Seconds until a connection without a call is closed; a client that has further calls connects again by itself."""
STRIKES = 10
"""Pings that come too fast until their connection is closed."""
MOST_STREAMS = 1000
"""Calls of one connection at the same time; further ones are refused as UNAVAILABLE."""
SHARE = 0.5
"""Share of the process's open files that gRPC connections may take."""
CANCELLED_S = 1.0
"""Seconds that a stopping server waits for the handlers that it has cancelled."""
READ_ON_S = 1.0
"""Seconds for which a server reads what a client still sends of a call that it has refused."""
PROBES = "/grpc.health."
_FAULTS = {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
"""Codes that are the server's fault, by OpenTelemetry's conventions for gRPC."""


def server_options() -> list[tuple[str, int]]:
    """Return what a server bears of a client: pings, silence, connections, and no compressed message.

    A compressed message would be inflated before its length is checked: 64 KiB may become 64 MiB.
    """
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", MOST_STREAMS),
        # the pings of KEEPALIVE_S are accepted, also during a long silent call
        ("grpc.http2.min_ping_interval_without_data_ms", 1000),
        ("grpc.http2.max_ping_strikes", STRIKES),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # identity alone
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * 1000)),
        ("grpc.max_connection_idle_ms", int(IDLE_S * 1000)),
        ("grpc.max_allowed_incoming_connections", most_connections(SHARE)),
    ]


def server(
    options: Sequence[tuple[str, int]] = (), interceptors: Sequence[grpc.aio.ServerInterceptor] = ()
) -> grpc.aio.Server:
    """Return a server whose handlers turn AfterimageError into its status, log other errors, and time every call.

    Handlers are wrapped once, at registration. An interceptor would run again at every call, and would take a sixth of
    the time of a small internal call.
    """
    guarding: Any = _Guarding(grpc.aio.server(options=options, interceptors=interceptors))
    made: grpc.aio.Server = guarding
    return made


class _Guarding:
    """A server that wraps the handlers registered with it, and answers calls of its own process directly."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server
        self._handlers: list[_Guarded] = []
        self._serving = False
        self.direct: set[asyncio.Task[bytes]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        added = [_Guarded(one) for one in handlers]
        self._handlers += added
        self._server.add_generic_rpc_handlers(added)

    async def start(self) -> None:
        await self._server.start()
        self._serving = True

    async def stop(self, grace: float | None) -> None:
        """Refuse new calls, give those in progress `grace` seconds, then cancel them."""
        self._serving = False
        stopping = asyncio.ensure_future(self._server.stop(grace))
        if self.direct:
            await asyncio.wait(self.direct, timeout=grace or 0.0)
        for call in self.direct:
            call.cancel()
        if self.direct:
            await asyncio.wait(self.direct, timeout=CANCELLED_S)
        await stopping

    def handler(self, method: str) -> Any:
        if not self._serving:
            return None
        return next((one for each in self._handlers if (one := each.service(_Details(method)))), None)


class _Details(NamedTuple):
    method: str
    invocation_metadata: Any = None


class _Guarded(grpc.GenericRpcHandler):
    def __init__(self, handlers: grpc.GenericRpcHandler) -> None:
        self._handlers = handlers
        self._guarded: dict[str, Any] = {}
        """Wrapped handlers by method, made at the method's first call."""

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        method = details.method
        if method not in self._guarded:
            handler = self._handlers.service(details)
            if handler is None:  # an unknown method: its name comes from a caller and is not stored
                return None
            self._guarded[method] = _probed(handler) if method.startswith(PROBES) else _guarded(handler, method)
        return self._guarded[method]


def _probed(handler: Any) -> Any:
    """Return a handler of the health service, which is neither timed nor traced."""

    async def checked(request: Any, context: Any) -> Any:
        try:
            _check(request)
        except InvalidRequestError as error:
            return end_with(rpc.to_status(error), context)
        return await (handler.unary_unary or handler.unary_stream)(request, context)

    make = grpc.unary_unary_rpc_method_handler if handler.unary_unary else grpc.unary_stream_rpc_method_handler
    return make(checked, _careful(handler.request_deserializer), handler.response_serializer)


def _guarded(handler: Any, method: str) -> Any:
    parse = _careful(handler.request_deserializer)
    if handler.unary_unary:
        guard = _guard_unary(handler.unary_unary, method)
        return grpc.unary_unary_rpc_method_handler(guard, parse, handler.response_serializer)
    if handler.unary_stream:
        guard = _guard_stream(handler.unary_stream, method)
        return grpc.unary_stream_rpc_method_handler(guard, parse, handler.response_serializer)
    if handler.stream_unary:
        guard = _guard_unary(_reading(handler.stream_unary), method, streamed=True)
        return grpc.stream_unary_rpc_method_handler(guard, parse, handler.response_serializer)
    guard = _guard_stream(_reading(handler.stream_stream), method, streamed=True)
    return grpc.stream_stream_rpc_method_handler(guard, parse, handler.response_serializer)


def _reading(call: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the call of a request stream, with each of its messages checked as it is read."""

    async def checked(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            _check(request)
            yield request

    return lambda requests, context: call(checked(requests), context)


class _Malformed:
    """Placeholder for malformed bytes: the handler's wrapper then replies with an error in our form."""


def _careful(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def parsed(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            return _Malformed()

    return parsed


def _check(request: Any) -> None:
    if isinstance(request, _Malformed):
        raise InvalidRequestError("message", "must be this method's request in protobuf's wire format")


def _guard_unary(
    call: Callable[[Any, Any], Awaitable[Any]], method: str, *, streamed: bool = False
) -> Callable[[Any, Any], Awaitable[Any]]:
    async def guarded(request: Any, context: Any) -> Any:
        with _timed(method, context) as timed:
            try:
                _check(request)
                return await call(request, context)
            except Exception as error:
                if streamed:
                    await read_on(request)
                _refuse(error, context, method, timed)
                return None

    return guarded


def _guard_stream(
    call: Callable[[Any, Any], AsyncIterator[Any]], method: str, *, streamed: bool = False
) -> Callable[[Any, Any], Any]:
    async def guarded(request: Any, context: Any) -> AsyncIterator[Any]:
        with _timed(method, context) as timed:
            try:
                _check(request)
                async for response in call(request, context):
                    yield response
            except Exception as error:
                if streamed:
                    await read_on(request)
                _refuse(error, context, method, timed)

    return guarded


async def read_on(requests: AsyncIterator[Any]) -> None:
    """Read what the client still sends, for READ_ON_S at most, before its call ends with an error.

    A client of grpc.aio whose call ends while it sends reports an error of its own instead of the server's.
    """
    with contextlib.suppress(Exception):
        async with asyncio.timeout(READ_ON_S):
            async for _ in requests:
                pass


@dataclass
class _Timed:
    code: str = "OK"


@contextlib.contextmanager
def _timed(method: str, context: Any) -> Iterator[_Timed]:
    """Time and trace one call under the status code that it ends with."""
    timed, start = _Timed(), time.monotonic()
    with _server_span(method, context) as span:
        try:
            yield timed
        except (asyncio.CancelledError, GeneratorExit):
            timed.code = "CANCELLED"  # the client cancelled the call or is gone
            raise
        finally:
            METRICS.rpc_seconds.labels(method.rsplit("/", 1)[-1], timed.code).observe(time.monotonic() - start)
            span.note("rpc.response.status_code", timed.code)
            if timed.code in _FAULTS:
                span.fail(timed.code)


def _server_span(method: str, context: Any) -> tracing.Span:
    if not tracing.tracing():
        return tracing.NO_SPAN
    return tracing.served(method[1:], dict(context.invocation_metadata() or ()), rpc.span_attributes(method[1:]))


def _refuse(error: Exception, context: Any, method: str, timed: _Timed) -> None:
    """End the call with the error's status."""
    if not isinstance(error, AfterimageError):
        log("rpc").error("unexpected error", method=method, error=repr(error), exc_info=error)
        error = AfterimageError(f"internal error: {type(error).__name__}")
    elif error.outside != str(error):
        log("rpc").warning("a call failed", method=method, error=str(error))
    timed.code = error.code
    end_with(rpc.to_status(error), context)


def end_with(status: Any, context: Any) -> None:
    """Make the call end with this status once its handler returns.

    Handlers must not call `context.abort`: its exception refers to the call, and the call to the exception. Until
    Python's garbage collection finds the cycle, the call counts as an open stream of its connection.
    """
    context.set_code(status.code)
    context.set_details(status.details)
    context.set_trailing_metadata(status.trailing_metadata)
