"""Errors over HTTP: one shape, OpenAI's, with a status, and advice on whether to send the request again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.responses import JSONResponse

from shared.domain.errors import (
    AfterimageError,
    CancelledError,
    InvalidRequestError,
    JobFailedError,
    LateError,
    RateLimitError,
    StorageFullError,
    passes,
)
from shared.runtime.telemetry import log

STATUSES: Mapping[str, tuple[int, str]] = {
    "INVALID_ARGUMENT": (400, "invalid_request_error"),
    "UNAUTHENTICATED": (401, "authentication_error"),
    "PERMISSION_DENIED": (403, "permission_error"),
    "NOT_FOUND": (404, "not_found_error"),
    "ALREADY_EXISTS": (409, "conflict_error"),
    "CANCELLED": (409, "conflict_error"),
    "RESOURCE_EXHAUSTED": (429, "rate_limit_error"),
    "INTERNAL": (500, "server_error"),
    "DATA_LOSS": (500, "server_error"),
    "FAILED_PRECONDITION": (500, "server_error"),
    "UNAVAILABLE": (503, "server_error"),
    "DEADLINE_EXCEEDED": (504, "server_error"),
}
"""HTTP status and OpenAI's `type` by gRPC status."""
_CODES: tuple[tuple[type[AfterimageError], int, str], ...] = (
    (StorageFullError, 503, "storage_full"),
    (LateError, 429, "deadline_cannot_be_met"),
    (RateLimitError, 429, "rate_limit_exceeded"),
    (JobFailedError, 500, "job_failed"),
    (CancelledError, 409, "job_cancelled"),
)
"""HTTP status and `code` of errors that share their gRPC status with others."""
PARAMS: Mapping[str, str] = {
    "steps": "num_inference_steps",
    "guidance": "guidance_scale",
    "width": "size",
    "height": "size",
    "frames": "num_frames",
    "page_token": "after",
    "idempotency-key": "Idempotency-Key",
}
"""Names of fields in HTTP requests by their names in gRPC requests, where they differ."""


@dataclass(eq=False)
class HttpError(Exception):
    """An answer that is no image, decided by the HTTP API itself."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    kind: str = "invalid_request_error"


def answer_of(error: Exception) -> JSONResponse:
    """Return the response to a request that ended with this error."""
    status, body, headers = described(error)
    return JSONResponse({"error": body}, status, headers)


def described(error: Exception) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Return status, body and headers. Errors that nobody raised on purpose are logged, and their text is not shown."""
    if isinstance(error, HttpError):
        body = _body(error.message, error.kind, error.param, error.code)
        return error.status, body, {"x-should-retry": "false"}
    if not isinstance(error, AfterimageError):
        log("http").error("unexpected error", error=repr(error), exc_info=error)
        error = AfterimageError(f"internal error: {type(error).__name__}")
    elif error.outside != str(error):
        log("http").warning("a request failed", error=str(error))
    status, kind = STATUSES[error.code]
    code = error.code.lower()
    for one, its_status, its_code in _CODES:
        if isinstance(error, one):
            status, code = its_status, its_code
    message, param = error.outside, None
    if isinstance(error, InvalidRequestError):
        param = PARAMS.get(error.field, error.field)
        message = param + message.removeprefix(error.field)
    return status, _body(message, kind, param, code), _advice(error, status)


def plain(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return an answer in the one shape for a status of HTTP itself, such as 405."""
    code = HTTPStatus(status).name.lower()
    body = _body(message, "invalid_request_error", None, code)
    return JSONResponse({"error": body}, status, {**(headers or {}), "x-should-retry": "false"})


def _body(message: str, kind: str, param: str | None, code: str | None) -> dict[str, Any]:
    return {"message": message, "type": kind, "param": param, "code": code}


def _advice(error: AfterimageError, status: int) -> dict[str, str]:
    """Return headers: may the client send the request again, and when. The openai package obeys them."""
    headers = {"x-should-retry": "true" if passes(error) else "false"}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(math.ceil(error.retry_after_s), 1))
        headers["retry-after-ms"] = str(max(math.ceil(error.retry_after_s * 1000), 1))
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return headers
