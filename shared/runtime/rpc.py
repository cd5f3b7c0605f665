"""Errors as gRPC status and back, in one form for all services: code, message, field, rule, retry delay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
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
from shared.runtime.addresses import PROBE_S, ended, unreachable

DOMAIN = "afterimage"
LONGEST_SAID = 1000
"""Most bytes of an error's text. Clients refuse an answer with 8 to 16 KiB of metadata; an error's has its text up to
three times, once percent-encoded."""
_REASONS: dict[str, type[AfterimageError]] = {"STORAGE_FULL": StorageFullError, "JOB_FAILED": JobFailedError}
"""ErrorInfo reasons of errors that share their status code with others: a full disk differs from a full queue, and a
failed job from a failing gateway."""
AWAY = "does not answer"
KEEPALIVE_S = 10.0
"""Seconds of silence after which a peer is pinged, and seconds without an answer after which the peer counts as gone.

Without pings a call over a connection that was cut, not closed, waits for its whole timeout.
"""


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
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=_short(error.field), description=_short(error.rule)
        )
        details.append(_packed(error_details_pb2.BadRequest(field_violations=[violation])))
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    if reason := next((name for name, kind in _REASONS.items() if isinstance(error, kind)), ""):
        details.append(_packed(error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN)))
    code = getattr(grpc.StatusCode, error.code)
    return rpc_status.to_status(status_pb2.Status(code=code.value[0], message=_short(error.outside), details=details))


def _short(text: str) -> str:
    data = text.encode(errors="replace")
    return text if len(data) <= LONGEST_SAID else f"{data[:LONGEST_SAID].decode(errors='ignore')} …"


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
    why = await unreachable(target, PROBE_S) or ended(target, str(error)) or error
    return type(why)(str(why), outside=AWAY) if isinstance(why, UnavailableError) else why


def _invalid(field: str, message: str) -> InvalidRequestError:
    error = InvalidRequestError(field, message.removeprefix(f"{field}: "))
    error.args = (message,)
    return error


def _client_span(method: Any) -> tracing.Span:
    if not tracing.recording():
        return tracing.NO_SPAN
    name = getattr(method, "_method", b"").decode().lstrip("/")  # gRPC keeps it to itself
    return tracing.span(name or "call", "client", span_attributes(name))


def span_attributes(method: str) -> dict[str, str | int]:
    """Return the attributes of a call's span, at both ends. method: `package.Service/Method`."""
    return {"rpc.system.name": "grpc", "rpc.method": method}


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
