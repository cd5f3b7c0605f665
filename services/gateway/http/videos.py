"""`/v1/videos`: clips as jobs that a client asks for, follows and reads."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from services.gateway.caller import Caller
from services.gateway.http.api import ERASES, GENERATES, READS, Api
from services.gateway.http.clip_files import KINDS, Variant, clip_file
from services.gateway.http.errors import HttpError
from services.gateway.http.fields import DeletedVideo, Video, VideoFields, Videos
from services.gateway.http.forms import MULTIPART, URLENCODED, media_type, read_form
from services.gateway.http.identity import caller
from services.gateway.http.requests import video_request
from services.gateway.http.video_views import video
from services.gateway.own_jobs import own_job, own_jobs
from services.gateway.validation import page_token
from shared.domain.errors import NotFoundError
from shared.domain.types import Job, JobState, Modality

VideoId = Annotated[str, Path(max_length=64)]
UPLOADS = ("input_reference", "image_reference", "video")
"""Fields of OpenAI's API that name something else than text; a form may have the first one, as a file."""
_BODIES = ("application/json", MULTIPART, URLENCODED)
_SCHEMA = {"$ref": "#/components/schemas/VideoFields"}
_BODY = {"requestBody": {"required": True, "content": {kind: {"schema": _SCHEMA} for kind in _BODIES}}}
_FILES: dict[str, Any] = {kind: {} for kind in KINDS.values()}


def routes(api: Api) -> APIRouter:
    """Return the routes of clips."""
    router = APIRouter()

    @router.post("/v1/videos", response_model=Video, responses=GENERATES, openapi_extra=_BODY)
    async def create(
        request: Request, idempotency_key: Annotated[str | None, Header(alias="Idempotency-Key")] = None
    ) -> Response:
        """Accept a clip, and return its job without waiting for it."""
        fields, image = await _fields(request)
        message = video_request(fields, api.models, image)
        with api.calls.open(1) as calls:
            await api.accept(request, calls, message, caller(request), durable=True)
            job = calls[0].job
        assert job is not None
        return JSONResponse(video(job, api))

    @router.get("/v1/videos", response_model=Videos, responses=READS)
    async def listed(
        request: Request,
        after: Annotated[str, Query(max_length=64)] = "",
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["desc"] = "desc",
    ) -> Response:
        """Return a page of the caller's clips, newest first."""
        who, page = caller(request), {"limit": limit, "after": page_token(after), "clips": True}
        jobs, more = await own_jobs(api.jobs, who, api.settings.data_dir, **page)
        data = [video(job, api) for job in jobs]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
        return JSONResponse({"object": "list", "data": data, **ends, "has_more": bool(more)})

    @router.get("/v1/videos/{video_id}", response_model=Video, responses=READS)
    async def one(request: Request, video_id: VideoId) -> Response:
        """Return a clip's job."""
        return JSONResponse(video(await _own(api, video_id, caller(request)), api))

    @router.delete("/v1/videos/{video_id}", response_model=DeletedVideo, responses=ERASES)
    async def delete(request: Request, video_id: VideoId) -> Response:
        """Erase a clip with its prompt, its frames and its cache entry, for good; one that has not ended is cancelled
        before."""
        try:
            job = await own_job(api.jobs, video_id, caller(request), api.settings.data_dir)
        except NotFoundError:
            pass  # an expired clip may have left an entry of the cache: the eraser looks, and notes whom it refuses
        else:
            _check_video(job)
            if not job.state.final:
                await api.calls.cancel(job.id)  # also where nobody can erase it now
        await api.erase(request, video_id)
        return JSONResponse({"id": video_id, "object": "video.deleted", "deleted": True})

    @router.get("/v1/videos/{video_id}/content", response_class=Response, responses=READS | {200: {"content": _FILES}})
    async def content(request: Request, video_id: VideoId, variant: Variant = "video") -> Response:
        """Return a finished clip as MP4, its first frame, or a strip of its frames."""
        job = await _own(api, video_id, caller(request))
        file = await api.calls.answers.picture(job)
        if variant != "source":
            given = api.calls.answers.job(job), file, variant
            file = await api.conversions.run(job.request.tenant, clip_file, *given)
        return Response(file, media_type=KINDS[variant])

    return router


async def _own(api: Api, video_id: str, who: Caller) -> Job:
    """Return a clip that the caller may see and has not cancelled. Raises NotFoundError."""
    job = await own_job(api.jobs, video_id, who, api.settings.data_dir)
    _check_video(job)
    if job.state is JobState.CANCELLED:
        raise _unknown(video_id)
    return job


def _check_video(job: Job) -> None:
    """Raise NotFoundError for the job of an image."""
    if job.request.modality is not Modality.VIDEO:
        raise _unknown(job.id)


def _unknown(video_id: str) -> NotFoundError:
    return NotFoundError(f"video {video_id!r}: no such video; it never existed, was deleted or expired")


async def _fields(request: Request) -> tuple[VideoFields, bytes | None]:
    """Read the fields of a form or of JSON, and the first frame. Raises HttpError for another upload, and
    RequestValidationError."""
    kind = media_type(request.headers)
    if kind not in _BODIES:
        raise HttpError(400, f"Content-Type: must be one of {', '.join(_BODIES)}", "Content-Type", "content_type")
    given: Any
    files: dict[str, bytes] = {}
    if kind == "application/json":
        try:
            given = await request.json()
        except (ValueError, RecursionError):
            raise HttpError(400, "the body must be JSON", code="json_invalid") from None
    else:
        given, files = await read_form(request, UPLOADS[:1])
    for name in UPLOADS if isinstance(given, dict) else ():
        if given.pop(name, None) is not None:
            said = "must be a file of a form (multipart/form-data)" if name == UPLOADS[0] else "is not supported"
            raise HttpError(400, f"{name}: {said}", name, "unsupported")
    try:
        return VideoFields.model_validate(given), files.get(UPLOADS[0])
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error
