"""The page of errors. A docstring's first paragraph says what happened, and its second one what to do."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import shared.models.folders  # defines an error
import shared.runtime.addresses  # noqa: F401  # defines two errors
from scripts.reference.markdown import code, prose, table
from services.cli.app import exit_code
from services.gateway.http import errors as http
from shared.domain.errors import AfterimageError
from shared.runtime import rpc

INTRO = """\
# Errors

Every error that Afterimage raises on purpose is an `AfterimageError`. Its message has the value, the rule and what to
do. A gRPC call ends with the status below. A field that breaks a rule is in a `BadRequest` detail, a retry delay in
`RetryInfo`, and a reason in `ErrorInfo` (domain `afterimage`). A command prints one line and ends with the exit code.
Over HTTP, the body is OpenAI's `{"error": {"message", "type", "param", "code"}}` ([below](#errors-over-http)).

"""
HEADER = ("error", "gRPC status", "reason", "exit code", "what happened", "what to do")
HTTP_HEADER = ("status", "`type`", "`code`", "error or gRPC status, or the reason")
HTTP = """\
`param` names the field of the HTTP request. `x-should-retry` is `true` where waiting may help, and `Retry-After` (in s)
and `retry-after-ms` then say how long; the `openai` packages obey all three. A stream that has begun ends with an event
`error` that has the same body.
"""
HTTP_ONLY = (
    (
        400,
        "invalid_request_error",
        "`json_invalid`, `missing`, …",
        "The body is no request: pydantic's name of the rule.",
    ),
    (400, "invalid_request_error", "`unknown_parameter`", "A field that the request does not have."),
    (400, "invalid_request_error", "`content_type`", "A `Content-Type` that the path does not take."),
    (400, "invalid_request_error", "`unsupported`", "`image_reference` or `video`, and in JSON `input_reference`."),
    (
        400,
        "invalid_request_error",
        "`invalid_parameter`",
        "A field sent twice or of the wrong kind; a wrong `Last-Event-ID`.",
    ),
    (400, "invalid_request_error", "`bad_host`", "No `Host` header, or one that names no host."),
    (400, "invalid_request_error", "`body_not_allowed`", "A GET or HEAD request with a body."),
    (403, "permission_error", "`host_not_allowed`", "See the setting `http_hosts`."),
    (403, "permission_error", "`origin_not_allowed`", "See the setting `http_origins`."),
    (403, "permission_error", "`bad_signature`, `url_expired`", "A signed address that was changed, or is too old."),
    (404, "not_found_error", "`model_not_found`", "No served model has this name."),
    (404, "invalid_request_error", "`not_found`", "No such path."),
    (405, "invalid_request_error", "`method_not_allowed`", "`Allow` names the methods of the path."),
    (408, "invalid_request_error", "`request_timeout`", "The body did not arrive in 30 s, or in 120 s with files."),
    (413, "invalid_request_error", "`request_too_large`", "The body is larger than any valid request."),
)


def page() -> str:
    """Return the page as Markdown."""
    rows = []
    kinds: list[type[AfterimageError]] = [AfterimageError, *_below(AfterimageError)]
    for kind in kinds:
        reason = next((name for name, of in rpc._REASONS.items() if issubclass(kind, of)), "")
        happened, todo, *_ = [*inspect.cleandoc(kind.__doc__ or "").split("\n\n"), ""]
        cells = code(kind.__name__), code(kind.code), code(reason), str(exit_code(kind.__new__(kind)))
        rows.append((*cells, prose(happened), prose(todo)))
    statuses = "\n".join(f"| `{status}` | `{kind.__name__}` |" for status, kind in rpc._BY_CODE.items())
    return f"""\
{INTRO}{table(HEADER, rows)}
## Errors by gRPC status

The Python client and the commands see a status, its details and no type. A reason decides first, then a field
(`InvalidRequestError`), then the status:

| gRPC status | raised by the client |
|---|---|
{statuses}
| `UNIMPLEMENTED` | `ConfigurationError` |
| any other | `AfterimageError` |

## Errors over HTTP

{HTTP}
{table(HTTP_HEADER, _http_rows())}"""


def _http_rows() -> list[tuple[str, ...]]:
    own = [(status, code(name), code(kind.__name__)) for kind, status, name in http._CODES]
    by_name = [(status, code(name.lower()), code(name)) for name, (status, _) in http.STATUSES.items()]
    types = dict(http.STATUSES.values())
    rows = [(str(status), code(types[status]), *rest) for status, *rest in sorted([*own, *by_name])]
    return [*rows, *((str(status), code(kind), name, said) for status, kind, name, said in HTTP_ONLY)]


def _below(kind: type[AfterimageError]) -> Iterator[type[AfterimageError]]:
    """Yield the errors that `shared` defines; a service's own errors reach clients as their base."""
    for one in kind.__subclasses__():
        if one.__module__.startswith("shared."):
            yield one
            yield from _below(one)
