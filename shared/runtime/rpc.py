"""Errors as gRPC status and back, in one form for all services: code, message, field, rule, retry delay."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from shared.domain.errors import (
    AfterimageError,
    CancelledError,
    ConfigurationError,
    ConflictError,
    DeadlineError,
    InvalidRequestError,
    JobFailedError,
    ModelError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    StorageFullError,
    UnauthenticatedError,
    UnavailableError,
)
from shared.runtime import tracing
from shared.runtime.addresses import PROBE_S, unreachable
from shared.runtime.telemetry import METRICS, log

DOMAIN = "afterimage"
_REASONS: dict[str, type[AfterimageError]] = {"STORAGE_FULL": StorageFullError, "JOB_FAILED": JobFailedError}
"""ErrorInfo reasons of errors that share their status code with others: a full disk differs from a full queue, and a
failed job from a failing gateway."""
_FAULTS = {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
"""Codes that are the server's fault, by OpenTelemetry's conventions for gRPC."""
AWAY = "does not answer"
KEEPALIVE_S = 10.0
"""Seconds of silence after which a peer is pinged, and seconds without an answer after which the peer counts as gone.

Without pings a call over a connection that was cut, not closed, waits for its whole timeout.
"""
HANDSHAKE_S = 5.0
"""Seconds until a connection that says nothing is closed."""
IDLE_S = 600.0
"""Seconds until a connection without a call is closed; a client that has further calls connects again by itself."""
STRIKES = 10
"""Pings that come too fast until their connection is closed."""
MOST_STREAMS = 1000
"""Calls of one connection at the same time; further ones are refused as UNAVAILABLE."""
MOST_CONNECTIONS = 10_000
CANCELLED_S = 1.0
"""Seconds that a stopping server waits for the handlers that it has cancelled."""
READ_ON_S = 1.0
"""Seconds for which a server reads what a client still sends of a call that it has refused."""


def server_options() -> list[tuple[str, int]]:
    """Return what a server bears of a client: pings, silence, connections, and no compressed message.

    A compressed message would be inflated before its length is checked: 64 KiB may become 64 MiB.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    files = MOST_CONNECTIONS if files == resource.RLIM_INFINITY else files
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", MOST_STREAMS),
        # the pings of KEEPALIVE_S are accepted, also during a long silent call
        ("grpc.http2.min_ping_interval_without_data_ms", 1000),
        ("grpc.http2.max_ping_strikes", STRIKES),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # identity alone
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * 1000)),
        ("grpc.max_connection_idle_ms", int(IDLE_S * 1000)),
        # the servers behind need open files, too
        ("grpc.max_allowed_incoming_connections", min(MOST_CONNECTIONS, files * 3 // 4)),
    ]


def channel_options(max_message_bytes: int, received_bytes: int = 0) -> list[tuple[str, int]]:
    """Return options of a channel or server. received_bytes: most of a received message; 0: as of a sent one."""
    return [
        ("grpc.max_receive_message_length", received_bytes or max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        # reconnect to a restarted service within seconds (gRPC's default waits up to two minutes)
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", 2000),
        ("grpc.max_reconnect_backoff_ms", 2000),
        ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
        ("grpc.keepalive_timeout_ms", int(KEEPALIVE_S * 1000)),
        ("grpc.http2.ping_timeout_ms", int(KEEPALIVE_S * 1000)),  # sets the limit in grpc 1.78 (default: 60 s)
        ("grpc.http2.max_pings_without_data", 0),
    ]


def to_status(error: AfterimageError) -> Any:
    """Return the error as a gRPC status with details: BadRequest for a field, RetryInfo a delay, ErrorInfo a reason."""
    details = []
    if isinstance(error, InvalidRequestError):
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.rule)
        details.append(_packed(error_details_pb2.BadRequest(field_violations=[violation])))
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    if reason := next((name for name, kind in _REASONS.items() if isinstance(error, kind)), ""):
        details.append(_packed(error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN)))
    code = getattr(grpc.StatusCode, error.code)
    return rpc_status.to_status(status_pb2.Status(code=code.value[0], message=error.outside, details=details))


def _packed(message: Any) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


_BY_CODE: dict[str, type[AfterimageError]] = {
    "NOT_FOUND": NotFoundError,
    "UNAUTHENTICATED": UnauthenticatedError,
    "PERMISSION_DENIED": PermissionDeniedError,
    "ALREADY_EXISTS": ConflictError,
    "RESOURCE_EXHAUSTED": OverloadedError,
    "UNAVAILABLE": UnavailableError,
    "CANCELLED": CancelledError,
    "DEADLINE_EXCEEDED": DeadlineError,
    "FAILED_PRECONDITION": ModelError,
}


def from_rpc_error(error: grpc.RpcError) -> AfterimageError:
    """Return the error that the server raised, on the client's side of the call."""
    status = rpc_status.from_call(error) if hasattr(error, "trailing_metadata") else None
    retry_after_s: float | None = None
    kind = _BY_CODE.get(error.code().name, AfterimageError)
    for detail in status.details if status is not None else ():
        bad, retry, info = error_details_pb2.BadRequest(), error_details_pb2.RetryInfo(), error_details_pb2.ErrorInfo()
        if detail.Unpack(bad) and bad.field_violations:
            return _invalid(bad.field_violations[0].field, error.details())
        if detail.Unpack(retry):
            retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
        if detail.Unpack(info) and info.domain == DOMAIN:
            kind = _REASONS.get(info.reason, kind)
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        said = f"another service, or another version of it, listens there; check the address ({error.details()})"
        return ConfigurationError(said)
    if status is None and "larger than max" in (error.details() or ""):
        rule = (
            "a message holds max_message_bytes at most, at both ends; send less, or raise AFTERIMAGE_MAX_MESSAGE_BYTES "
            "(a request holds two prompts of max_prompt_chars and 128 KiB; GenerateFromImage sends an image in parts)"
        )
        return OverloadedError(f"{error.details()}: {rule}")
    # without our status the text is gRPC's own, which names addresses
    away = AWAY if status is None and kind is UnavailableError else ""
    return kind(error.details() or error.code().name, retry_after_s=retry_after_s, outside=away)


def error_named(code: str, message: str) -> AfterimageError:
    """Return the error behind a status that a message holds, for example of one of several images."""
    return JobFailedError(message) if code == JobFailedError.code else _BY_CODE.get(code, AfterimageError)(message)


async def explained(error: AfterimageError, target: str) -> AfterimageError:
    """Return the reason why gRPC could not connect to `target`; any other error unchanged.

    The reason is an UnavailableError if another try may help.
    """
    if not isinstance(error, UnavailableError) or error.outside != AWAY:
        return error
    why = await unreachable(target, PROBE_S)
    return type(why)(str(why), outside=AWAY) if isinstance(why, UnavailableError) else why or error


def _invalid(field: str, message: str) -> InvalidRequestError:
    error = InvalidRequestError(field, message.removeprefix(f"{field}: "))
    error.args = (message,)
    return error


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
            self._guarded[method] = handler if method.startswith("/grpc.") else _guarded(handler, method)
        return self._guarded[method]


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
    return tracing.served(method[1:], dict(context.invocation_metadata() or ()), _attributes(method[1:]))


def _client_span(method: Any) -> tracing.Span:
    if not tracing.recording():
        return tracing.NO_SPAN
    name = getattr(method, "_method", b"").decode().lstrip("/")  # gRPC keeps it to itself
    return tracing.span(name or "call", "client", _attributes(name))


def _attributes(method: str) -> dict[str, str | int]:
    return {"rpc.system.name": "grpc", "rpc.method": method}


def _refuse(error: Exception, context: Any, method: str, timed: _Timed) -> None:
    """End the call with the error's status."""
    if not isinstance(error, AfterimageError):
        log("rpc").error("unexpected error", method=method, error=repr(error), exc_info=error)
        error = AfterimageError(f"internal error: {type(error).__name__}")
    elif error.outside != str(error):
        log("rpc").warning("a call failed", method=method, error=str(error))
    timed.code = error.code
    end_with(to_status(error), context)


def end_with(status: Any, context: Any) -> None:
    """Make the call end with this status once its handler returns.

    Handlers must not call `context.abort`: its exception refers to the call, and the call to the exception. Until
    Python's garbage collection finds the cycle, the call counts as an open stream of its connection.
    """
    context.set_code(status.code)
    context.set_details(status.details)
    context.set_trailing_metadata(status.trailing_metadata)


async def call(method: Callable[..., Any], request: Any, *, timeout_s: float, metadata: Any = None) -> Any:
    """Call another service once; raise the server's own AfterimageError, or UnavailableError without a server."""
    with _client_span(method) as span:
        try:
            sent = (*(metadata or ()), *tracing.outgoing().items())
            shown = {"metadata": sent} if sent else {}
            reply = await method(request, timeout=timeout_s, **shown)
            span.note("rpc.response.status_code", "OK")
        except grpc.RpcError as error:
            span.note("rpc.response.status_code", error.code().name)
            raise from_rpc_error(error) from error
        except asyncio.InvalidStateError as error:  # the channel was closed during the call
            raise UnavailableError(str(error)) from error
    if reply is None:  # grpc.aio returns None for a reply that it cannot parse
        raise AfterimageError("the reply is no message of this method; check that both sides have the same version")
    return reply
