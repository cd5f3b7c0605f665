"""Forms: a request's fields as text, and its files."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from starlette.datastructures import Headers, UploadFile
from starlette.requests import Request

from services.gateway.http.errors import HttpError

MULTIPART, URLENCODED = "multipart/form-data", "application/x-www-form-urlencoded"
_MOST_FILES = 16
"""Files of a form at most, as in OpenAI's API. The server's rules allow fewer, and say so."""


def media_type(headers: Headers) -> str:
    """Return the type of the body, without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_form(request: Request, files: Collection[str]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the form's fields and files by name. files: the names under which a form may have a file, also as
    `name[]`. Raises HttpError for a field that is given twice, and for a file that is none of these."""
    given: dict[str, Any] = {}
    read: dict[str, bytes] = {}
    async with request.form(max_files=_MOST_FILES) as form:
        for key, value in form.multi_items():
            name = key.removesuffix("[]") if key.removesuffix("[]") in files else key
            if name in given or name in read:
                raise HttpError(400, f"{name[:100]}: must be given once", name[:100], "invalid_parameter")
            if isinstance(value, UploadFile) != (name in files):
                rule = "must be a file" if name in files else "must be text, not a file"
                raise HttpError(400, f"{name[:100]}: {rule}", name[:100], "invalid_parameter")
            if isinstance(value, UploadFile):
                read[name] = await value.read()
            else:
                given[name] = value
    return given, read
