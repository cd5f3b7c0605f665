"""HTTP fields as the gateway's own request."""

from __future__ import annotations

from protos import common_pb2 as pb
from services.gateway.http.errors import HttpError
from services.gateway.http.fields import IGNORED, EditFields, ImageFields, VideoFields
from services.gateway.served_models import Models
from shared.client.request_fields import RequestFields, request_message
from shared.domain.errors import InvalidRequestError

_ROLES = {"high": "large", "hd": "large", "low": "small"}


def image_request(fields: ImageFields, models: Models) -> pb.Request:
    """Return the request. Raises HttpError for an unknown model, and InvalidRequestError."""
    given = _common(fields)
    given["quality"] = _model(fields, models)
    return request_message(fields.prompt, **given)


def edit_request(fields: EditFields, image: bytes, mask: bytes, models: Models) -> pb.Request:
    """Return the request of an image that starts from an upload. Raises as `image_request`."""
    given = _common(fields)
    given |= {"quality": _model(fields, models), "image": image, "mask": mask, "strength": fields.strength}
    return request_message(fields.prompt, **given)


def video_request(fields: VideoFields, models: Models, image: bytes | None = None) -> pb.Request:
    """Return the request of a clip. image: its first frame. Raises HttpError for an unknown model, and
    InvalidRequestError."""
    if fields.model not in (None, "", "auto") and (models.video is None or fields.model != models.video.name):
        offered = f"must be {models.video.name} or auto" if models.video else "no model of clips is served"
        rule = f"model: {offered} (got {str(fields.model)[:120]!r})"
        raise HttpError(404, rule, "model", "model_not_found", "not_found_error")
    given = _common(fields)
    given |= {"modality": "video", "seconds": fields.seconds, "frames": fields.num_frames, "image": image}
    return request_message(fields.prompt, **given)


def _common(fields: ImageFields | VideoFields) -> RequestFields:
    width, height = _size(fields)
    return {
        "negative_prompt": fields.negative_prompt,
        "width": width,
        "height": height,
        "steps": fields.num_inference_steps,
        "guidance": fields.guidance_scale,
        "seed": fields.seed,
        "cache": fields.cache,
        "scope": fields.scope,
        "deadline_s": fields.deadline_s,
        "slo": fields.slo,
        "priority": fields.priority,
        "savings": fields.savings,
        "variation": fields.variation,
        "user": fields.user,
    }


def ignored_of(fields: ImageFields) -> list[str]:
    """Return the given fields that change nothing."""
    return [name for name in IGNORED if getattr(fields, name, None) is not None]


def _size(fields: ImageFields | VideoFields) -> tuple[int | None, int | None]:
    given = (fields.width, fields.height) if isinstance(fields, ImageFields) else (None, None)
    if fields.size in (None, "auto"):
        return given
    if given != (None, None):
        raise InvalidRequestError("size", "name size, or width and height, not both", fields.size)
    assert fields.size is not None
    width, _, height = fields.size.partition("x")
    return int(width), int(height)


def _model(fields: ImageFields, models: Models) -> str | None:
    """Return the model or role that may run the request, by OpenAI's `model` and `quality`."""
    role = _ROLES.get(fields.quality or "")
    if role == "small" and models.small is None:
        role = None
    if fields.model in (None, "", "auto"):
        return role
    assert fields.model is not None
    try:
        card = models.choose(fields.model).name
    except InvalidRequestError as error:
        rule = f"model: {error.rule} (got {fields.model[:120]!r})"
        raise HttpError(404, rule, "model", "model_not_found", "not_found_error") from error
    if role is not None and models.choose(role).name != card:
        raise InvalidRequestError(
            "quality", f"means the model {models.choose(role).name}; leave it out", fields.quality
        )
    return fields.model
