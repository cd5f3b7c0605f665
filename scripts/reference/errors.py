"""The page of errors. A docstring's first paragraph says what happened, and its second one what to do."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import shared.models.folders  # defines an error
import shared.runtime.addresses  # noqa: F401  # defines two errors
from scripts.reference.markdown import code, prose, table
from services.cli.app import exit_code
from shared.domain.errors import AfterimageError
from shared.runtime import rpc

INTRO = """\
# Errors

Every error that Afterimage raises on purpose is an `AfterimageError`. Its message has the value, the rule and what to
do. A gRPC call ends with the status below. A field that breaks a rule is in a `BadRequest` detail, a retry delay in
`RetryInfo`, and a reason in `ErrorInfo` (domain `afterimage`). A command prints one line and ends with the exit code.

"""
HEADER = ("error", "gRPC status", "reason", "exit code", "what happened", "what to do")


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
| any other | `AfterimageError` |
"""


def _below(kind: type[AfterimageError]) -> Iterator[type[AfterimageError]]:
    """Yield the errors that `shared` defines; a service's own errors reach clients as their base."""
    for one in kind.__subclasses__():
        if one.__module__.startswith("shared."):
            yield one
            yield from _below(one)
