"""The HTTP application: routes, errors in one shape, and the checks around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp

from services.gateway.console.pages import Pages
from services.gateway.http import images, listings, videos
from services.gateway.http.api import Api, ClientGoneError
from services.gateway.http.errors import HttpError, answer_of, plain
from services.gateway.http.fields import EditFields, VideoFields
from services.gateway.http.guard import GONE, Admission, Guard, Rules
from shared.domain.errors import AfterimageError
from shared.runtime.own_version import own_version


def app_of(api: Api, *others: APIRouter) -> ASGIApp:
    """Return the application with the checks around it. others: routes besides those of OpenAI's API."""
    app = FastAPI(title="Afterimage", version=own_version(), docs_url=None, redoc_url=None)
    app.include_router(images.routes(api))
    app.include_router(videos.routes(api))
    app.include_router(listings.routes(api))
    for router in others:
        app.include_router(router)
    app.mount("/console", Pages())
    app.add_route("/", lambda _: RedirectResponse("/console/"), include_in_schema=False)
    _answer_errors(app)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    rules = Rules.of(api.settings)
    guarded: ASGIApp = Admission(app, rules, api.callers, api.receiving)
    if api.settings.http_origins:
        exposed = ["x-request-id", "Retry-After", "x-should-retry"]
        origins, methods = sorted(api.settings.http_origins), ["GET", "POST", "DELETE"]
        guarded = CORSMiddleware(guarded, origins, methods, allow_headers=["*"], expose_headers=exposed)
    return Guard(guarded, rules)


def _answer_errors(app: FastAPI) -> None:
    async def ours(_: Request, error: Exception) -> Response:
        return answer_of(error)

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return answer_of(_first(error))

    async def standard(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return plain(error.status_code, str(error.detail), error.headers)

    async def gone(_: Request, error: Exception) -> Response:
        return Response(status_code=GONE)

    for kind in (AfterimageError, HttpError, Exception):
        app.add_exception_handler(kind, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, standard)
    app.add_exception_handler(ClientGoneError, gone)


def _first(error: RequestValidationError) -> HttpError:
    """Return the first broken rule, with the field's name."""
    found: dict[str, Any] = error.errors()[0]
    if found["type"] == "json_invalid":
        return HttpError(400, "the body must be JSON", code="json_invalid")
    if not (where := _where(found)):
        return HttpError(400, "the body must be a JSON object, sent as application/json", code=found["type"])
    param = where[0]
    if found["type"] == "extra_forbidden":
        return HttpError(400, f"{param[:100]}: is no field of this request", param[:100], "unknown_parameter")
    # a value that may have several types breaks the rule of each
    rules = dict.fromkeys(str(one["msg"]) for one in error.errors() if _where(one)[:1] == [param])
    first, *others = rules
    said = " or ".join([first, *(rule.removeprefix("Input should be ") for rule in others)])
    return HttpError(400, f"{param}: {said}", param, found["type"])


def _where(broken: Mapping[str, Any]) -> list[str]:
    """Return the path of a broken rule's field in the request."""
    return [str(part) for part in broken["loc"] if part not in ("body", "query", "path", "header")]


def _document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, without the status 422, which no answer has."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        for form in (EditFields, VideoFields):
            document["components"]["schemas"][form.__name__] = form.model_json_schema()
        document["components"]["schemas"]["EditFields"]["required"].append("image")
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        app.openapi_schema = document
    return app.openapi_schema
