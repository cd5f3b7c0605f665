"""`/v1/images`: generate images, and read one by its address."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from protos import common_pb2 as pb
from services.gateway.caller import Caller
from services.gateway.http import events
from services.gateway.http.answers import ImageAnswers
from services.gateway.http.api import ERASES, GENERATES, READS, Api, unless_gone
from services.gateway.http.errors import HttpError
from services.gateway.http.fields import STREAM, DeletedImage, EditFields, ImageFields, Images
from services.gateway.http.forms import MULTIPART, media_type, read_form
from services.gateway.http.identity import caller
from services.gateway.http.pictures import Output, check_output
from services.gateway.http.requests import edit_request, image_request
from services.gateway.own_jobs import own_job
from services.gateway.validation import image_count
from shared.client.views import images_of
from shared.domain.errors import InvalidRequestError

IdempotencyKey = Annotated[
    str | None,
    Header(alias="Idempotency-Key", description="A retry with the same key gets the first request's images."),
]
LastEventId = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID",
        description="Id of the last event of a broken stream: the new stream, of the same request with the same "
        "Idempotency-Key, has what follows.",
    ),
]
JobId = Annotated[str, Path(max_length=64)]
_EDIT = {
    "requestBody": {
        "required": True,
        "content": {MULTIPART: {"schema": {"$ref": "#/components/schemas/EditFields"}}},
    }
}
_PICTURE: dict[str, Any] = {"image/png": {}, "image/jpeg": {}, "image/webp": {}}


def routes(api: Api) -> APIRouter:
    """Return the routes of images."""
    router = APIRouter()

    @router.post("/v1/images/generations", response_model=Images, responses=GENERATES | {200: {"content": STREAM}})
    async def generate(
        request: Request,
        fields: ImageFields,
        idempotency_key: IdempotencyKey = None,
        last_event_id: LastEventId = None,
    ) -> Response:
        """Generate one image or several: as JSON when all are finished, or as a stream of events."""
        return await _answered(request, api, fields, image_request(fields, api.models))

    @router.post(
        "/v1/images/edits", response_model=Images, responses=GENERATES | {200: {"content": STREAM}}, openapi_extra=_EDIT
    )
    async def edit(
        request: Request, idempotency_key: IdempotencyKey = None, last_event_id: LastEventId = None
    ) -> Response:
        """Generate images that start from an uploaded one, whole or where a mask is transparent."""
        return await _answered(request, api, *await edited(request, api))

    @router.get(
        "/v1/images/{job_id}/content",
        response_class=Response,
        responses=READS | {200: {"content": _PICTURE}},
    )
    async def content(
        request: Request,
        job_id: JobId,
        output: Annotated[Output, Query(alias="format")] = "png",
        expires: Annotated[int | None, Query(ge=0, le=2**53)] = None,
        signature: Annotated[str | None, Query(max_length=64)] = None,
    ) -> Response:
        """Return an image: by a signed address without a key, or one of the caller's own jobs."""
        if signature is None:
            job = await own_job(api.jobs, job_id, caller(request), api.settings.data_dir)
        else:
            if expires is None:
                raise HttpError(400, "expires: must be there beside signature", "expires", "missing")
            api.signer.check(job_id, output, expires, signature, time.time())
            job = await api.jobs.get(job_id)
        picture = await api.conversions.image(job.request.tenant, await api.calls.answers.picture(job), output)
        lifetime_s = 60 if expires is None else max(int(expires - time.time()), 0)
        headers = {"Cache-Control": f"private, max-age={lifetime_s}", "X-Content-Type-Options": "nosniff"}
        return Response(picture, media_type=f"image/{output}", headers=headers)

    @router.delete("/v1/images/{job_id}", response_model=DeletedImage, responses=ERASES)
    async def delete(request: Request, job_id: JobId) -> Response:
        """Erase the job of an image, with its prompt, its image and its cache entry, for good."""
        await api.erase(request, job_id)
        return JSONResponse({"id": job_id, "object": "image.deleted", "deleted": True})

    return router


async def _answered(request: Request, api: Api, fields: ImageFields, message: pb.Request) -> Response:
    who, count = caller(request), image_count(fields.n or 1, api.settings)
    answers = ImageAnswers.to(request, fields, api)
    check_output(answers.output)
    last = request.headers.get("last-event-id", "")
    if last and not (fields.stream and who.idempotency_key):
        rule = "Last-Event-ID: needs stream, and the Idempotency-Key of the stream that it goes on"
        raise HttpError(400, rule, "Last-Event-ID", "invalid_parameter")
    if fields.stream:
        return await _stream(request, api, answers, who, message, events.Received(count, last))
    if fields.partial_images:
        raise InvalidRequestError("partial_images", "needs stream", fields.partial_images)
    return JSONResponse(await unless_gone(request, _generated(request, api, answers, who, message, count)))


async def edited(request: Request, api: Api) -> tuple[EditFields, pb.Request]:
    """Read the form, and return its request. Raises HttpError, RequestValidationError and InvalidRequestError."""
    if media_type(request.headers) != MULTIPART:
        raise HttpError(400, f"Content-Type: must be {MULTIPART}", "Content-Type", "content_type")
    given, files = await read_form(request, ("image", "mask"))
    if not files.get("image"):
        raise HttpError(400, "image: must be a PNG, JPEG or WebP file", "image", "missing")
    try:
        fields = EditFields.model_validate(given)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error
    return fields, edit_request(fields, files["image"], files.get("mask", b""), api.models)


async def _generated(
    request: Request, api: Api, answers: ImageAnswers, who: Caller, message: pb.Request, count: int
) -> dict[str, Any]:
    # a client with an idempotency key asks again for what it left
    with api.calls.open(count, drop_left=not who.idempotency_key) as calls:
        await api.accept(request, calls, message, who, durable=False)
        images = images_of(await api.calls.result(calls))
    return await answers.whole(images)


async def _stream(
    request: Request, api: Api, answers: ImageAnswers, who: Caller, message: pb.Request, received: events.Received
) -> Response:
    """Return the stream once the jobs are accepted: until then an error is an ordinary answer."""
    responses = _responses(request, api, who, message, received.images, previews=bool(answers.fields.partial_images))
    await anext(responses)
    body = events.with_heartbeats(events.image_events(responses, answers, received))
    return StreamingResponse(body, media_type=events.EVENTS, headers=events.HEADERS)


async def _responses(
    request: Request, api: Api, who: Caller, message: pb.Request, count: int, *, previews: bool
) -> AsyncGenerator[Any, None]:
    """Yield None when the jobs are accepted, then the events of all images."""
    with api.calls.open(count, drop_left=not who.idempotency_key) as calls:
        await api.accept(request, calls, message, who, durable=True, previews=previews)
        yield None
        stream: Any = api.calls.stream(calls, previews=previews)
        async with aclosing(stream):
            async for response in stream:
                yield response
