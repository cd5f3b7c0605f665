"""`/console/api`: what the console's pages ask. The callers, limits and jobs are those of the other interfaces."""

from __future__ import annotations

import io
import json
import time
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from protos import common_pb2 as pb
from services.gateway.caller import Caller, caller_of
from services.gateway.console.job_json import detail, summary
from services.gateway.console.live import Live
from services.gateway.console.operations import Operations
from services.gateway.console.sessions import COOKIE, LIFETIME_S, Sessions, cookie_of
from services.gateway.console.similar import Similar
from services.gateway.http.api import Api
from services.gateway.http.events import EVENTS, HEADERS, HEARTBEAT_S, error_event
from services.gateway.http.fields import Fields, ImageFields, Text, VideoFields
from services.gateway.http.identity import principal
from services.gateway.http.images import edited
from services.gateway.http.requests import image_request, video_request
from services.gateway.own_jobs import note_admin, own_job, own_jobs
from services.gateway.validation import check_prompt, image_count, page_token
from shared.client.views import picture_of
from shared.domain.errors import AfterimageError, PermissionDeniedError, UnauthenticatedError
from shared.domain.identity import Role
from shared.domain.types import JobState
from shared.runtime.own_version import own_version
from shared.service.door import CLIENTS

THUMB = 224
"""Longest side of a thumbnail in pixels."""
_POSITIONS = 20
"""Queued jobs of a page whose place in the queue is read."""
JobId = Annotated[str, Path(max_length=64)]
_NO_STORE = {"Cache-Control": "no-store"}


class LoginFields(Fields):
    key: str = Field(max_length=200)


class SimilarFields(Fields):
    prompt: Text


class GenerateFields(ImageFields):
    """The fields of the images API, and the start from one of the caller's images."""

    from_job: str | None = Field(None, max_length=64)
    strength: float | None = None


def user(request: Request) -> Caller:
    """Return the caller of a page about jobs. Raises UnauthenticatedError and PermissionDeniedError."""
    who = principal(request.scope)
    if not who.roles & CLIENTS:
        raise PermissionDeniedError(f"this view needs a key with the role {' or '.join(sorted(CLIENTS))}")
    return caller_of(who, request.headers.items())


def operator(request: Request) -> None:
    """Raise UnauthenticatedError and PermissionDeniedError unless an operator asks."""
    if Role.OPERATOR not in principal(request.scope).roles:
        raise PermissionDeniedError(f"this view needs a key with the role {Role.OPERATOR}")


def routes(api: Api, sessions: Sessions, live: Live, operations: Operations, similar: Similar) -> APIRouter:
    """Return the routes of the console's data."""
    router = APIRouter(prefix="/console/api", include_in_schema=False)

    # ---- the session ----

    @router.get("/session")
    async def session(request: Request) -> Response:
        """Return who is signed in, and what the forms need; `signed_in` is false where a key is asked for."""
        try:
            who = principal(request.scope)
        except AfterimageError:
            return JSONResponse({"signed_in": False, "version": own_version()}, headers=_NO_STORE)
        signed = sessions.holds(request.scope)
        facts = {
            "signed_in": True,
            "anonymous": not signed,
            "tenant": who.tenant or "default",
            "subject": who.subject,
            "roles": sorted(who.roles),
            "csrf": sessions.csrf(cookie_of(request.scope) if signed else ""),
            "version": own_version(),
            "models": _models(api),
            "max_images": api.settings.max_images,
            "max_steps": api.settings.max_steps,
        }
        return JSONResponse(facts, headers=_NO_STORE)

    @router.post("/login")
    async def login(request: Request, fields: LoginFields) -> Response:
        """Begin a session with a key, which the browser does not keep."""
        answer = JSONResponse({"signed_in": True}, headers=_NO_STORE)
        secure = request.url.scheme == "https" or api.settings.http_public_url.startswith("https:")
        cookie = sessions.begin(fields.key)
        answer.set_cookie(
            COOKIE, cookie, LIFETIME_S, path="/console/api/", secure=secure, httponly=True, samesite="strict"
        )
        return answer

    @router.post("/logout")
    async def logout() -> Response:
        answer = JSONResponse({"signed_in": False}, headers=_NO_STORE)
        answer.delete_cookie(COOKIE, path="/console/api/", httponly=True, samesite="strict")
        return answer

    # ---- jobs ----

    @router.get("/jobs")
    async def jobs(
        request: Request,
        after: Annotated[str, Query(max_length=64)] = "",
        limit: Annotated[int, Query(ge=1, le=500)] = 200,
        state: JobState | None = None,
    ) -> Response:
        """Return a page of the caller's jobs, newest first."""
        page = {"state": state, "limit": limit, "after": page_token(after)}
        found, more = await own_jobs(api.jobs, user(request), api.settings.data_dir, **page)
        rows = [summary(job) for job in found]
        for row in [one for one in rows if one["state"] == "queued"][-_POSITIONS:]:
            row["position"] = await api.jobs.position(row["id"])
        return JSONResponse({"jobs": rows, "next": more}, headers=_NO_STORE)

    @router.post("/similar")
    async def alike(request: Request, fields: SimilarFields) -> Response:
        """Return the caller's jobs whose prompts are nearest to a text, the nearest first. It counts towards the key's
        rate, and a body keeps the text out of the logs of proxies."""
        who = user(request)
        check_prompt(fields.prompt, api.settings)
        note_admin(who, api.settings.data_dir, "search jobs", f"tenant {who.tenant}")
        found = await similar.jobs(fields.prompt, who)
        rows = [summary(job) | {"alike": similarity} for job, similarity in found]
        return JSONResponse({"jobs": rows}, headers=_NO_STORE)

    @router.post("/jobs")
    async def generate(request: Request, fields: GenerateFields) -> Response:
        """Accept a request for images, and return its jobs without waiting for them."""
        message = image_request(fields, api.models)
        if fields.from_job:
            message.from_job = fields.from_job
        if fields.strength is not None:
            message.strength = fields.strength
        return await _accepted(request, api, message, image_count(fields.n or 1, api.settings))

    @router.post("/edits")
    async def edit(request: Request) -> Response:
        """Accept a form's request for images that start from its file, and return its jobs."""
        fields, message = await edited(request, api)
        return await _accepted(request, api, message, image_count(fields.n or 1, api.settings))

    @router.post("/clips")
    async def clip(request: Request, fields: VideoFields) -> Response:
        """Accept a request for a clip, and return its job."""
        return await _accepted(request, api, video_request(fields, api.models), 1)

    @router.get("/jobs/{job_id}")
    async def one(request: Request, job_id: JobId) -> Response:
        """Return everything about one job."""
        job = await own_job(api.jobs, job_id, user(request), api.settings.data_dir)
        shown = detail(job, picture_of(api.calls.answers.job(job), b"").timings)
        if job.state is JobState.QUEUED:
            shown["position"] = await api.jobs.position(job.id)
        return JSONResponse(shown, headers=_NO_STORE)

    @router.delete("/jobs/{job_id}")
    async def cancel(request: Request, job_id: JobId) -> Response:
        """Cancel a job, and return it; one that had ended stays as it is."""
        job = await own_job(api.jobs, job_id, user(request), api.settings.data_dir, "cancel job")
        return JSONResponse(summary(await api.calls.cancel(job.id)), headers=_NO_STORE)

    @router.get("/jobs/{job_id}/image")
    async def image(request: Request, job_id: JobId, size: Literal["full", "thumb"] = "full") -> Response:
        """Return the image of a finished job; a clip is an animated PNG."""
        job = await own_job(api.jobs, job_id, user(request), api.settings.data_dir)
        content, kind = await api.calls.answers.picture(job), "png"
        if size == "thumb" and find_spec("PIL") is not None:
            content, kind = await api.conversions.run(job.request.tenant, _thumb, content), "webp"
        headers = {"Cache-Control": "private, max-age=3600, immutable", "X-Content-Type-Options": "nosniff"}
        return Response(content, media_type=f"image/{kind}", headers=headers)

    # ---- operators ----

    @router.get("/cache")
    async def cache(request: Request) -> Response:
        operator(request)
        return JSONResponse(await operations.cache(), headers=_NO_STORE)

    # ---- events ----

    @router.get("/events")
    async def events(request: Request) -> Response:
        """Return what happens from now on to the caller's jobs, and to the fleet for an operator."""
        if principal(request.scope).roles & CLIENTS:
            who = user(request)
            note_admin(who, api.settings.data_dir, "watch jobs", f"tenant {who.tenant}")
        body = _events(request, sessions, live)
        await anext(body)  # subscribed: what happens after this answer begins is in it
        return StreamingResponse(body, media_type=EVENTS, headers=HEADERS)

    return router


async def _accepted(request: Request, api: Api, message: pb.Request, count: int) -> Response:
    with api.calls.open(count) as calls:
        await api.accept(request, calls, message, user(request), durable=True, previews=True)
        jobs = [call.job for call in calls]
    return JSONResponse({"jobs": [summary(job) for job in jobs if job is not None]}, 202, _NO_STORE)


async def _events(request: Request, sessions: Sessions, live: Live) -> AsyncIterator[bytes]:
    who = principal(request.scope)
    sees = user(request).may_see if who.roles & CLIENTS else _nothing
    ends = time.monotonic() + sessions.left_s(request.scope)
    async with live.tab(sees, operator=Role.OPERATOR in who.roles) as tab:
        yield b""
        yield b"retry: 2000\nevent: hello\ndata: {}\n\n"
        while not live.draining and (left_s := ends - time.monotonic()) > 0:
            events = await tab.next(min(HEARTBEAT_S, left_s))
            for kind, event in events:
                yield _event(kind, event)
            if not events:
                yield b": waiting\n\n"
    if not live.draining:
        yield error_event(UnauthenticatedError("the session has ended: sign in again"))


def _event(kind: str, data: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def _nothing(_tenant: str, _user: str) -> bool:
    return False


def _models(api: Api) -> list[dict[str, Any]]:
    """Return the served models, as the forms offer them."""
    models = api.models
    roles = {models.large: "large", models.small or "": "small"}
    images = [(card, "image") for card in models.cards.values()]
    clips = [(models.video, "video")] if models.video else []
    return [
        {
            "id": card.name,
            "kind": kind,
            "role": roles.get(card.name, "") if kind == "image" else "",
            "width": card.default_size.width,
            "height": card.default_size.height,
            "steps": card.default_steps,
            "guidance": card.default_guidance,
            "fps": card.frames.fps if kind == "video" else 0,
        }
        for card, kind in (*images, *clips)
    ]


def _thumb(png: bytes) -> bytes:
    from PIL import Image  # gateways in containers do without

    out = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        small = image.convert("RGB")
        small.thumbnail((THUMB, THUMB))
        small.save(out, "WEBP", quality=80)
    return out.getvalue()
