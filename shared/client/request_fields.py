"""The fields of a request in Python, and the protobuf message made from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict, Unpack

from google.protobuf.descriptor import FieldDescriptor

from protos import common_pb2
from shared.domain.errors import InvalidRequestError
from shared.domain.types import CacheMode, Modality, Scope, Variation

_ENUMS: Mapping[str, tuple[type[Any], str]] = {
    "cache": (CacheMode, "CACHE_MODE"),
    "scope": (Scope, "SCOPE"),
    "modality": (Modality, "MODALITY"),
    "variation": (Variation, "VARIATION"),
}
_BOUNDS: Mapping[int, tuple[int, int]] = {
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
}
"""Smallest and largest value of a protobuf type, by the type's number."""


class RequestFields(TypedDict, total=False):
    """The optional fields of a request (protos/common.proto's Request); None: not given."""

    negative_prompt: str | None
    width: int | None
    """Pixels; default: the model's own width."""
    height: int | None
    frames: int | None
    """Frames of a clip; default: the model's own length."""
    seconds: float | None
    """Length of a clip in place of `frames`; the model's frames per second make frames of it."""
    steps: int | Literal["auto"] | None
    """Denoising steps T. `auto`, the default: the plan chooses T where the model lists several, else the model's."""
    steps_auto: bool | None
    """As a job states it: the plan chooses T, whatever `steps` says."""
    guidance: float | None
    seed: int | None
    """Default: a random seed, which the result reports."""
    quality: str | None
    """`auto`, `large`, `small` or a model's id."""
    modality: Modality | Literal["image", "video"] | None
    cache: CacheMode | Literal["auto", "read", "write", "off"] | None
    scope: Scope | Literal["private", "tenant", "public"] | None
    priority: int | None
    """Jobs of higher priority run first."""
    deadline_s: float | None
    """Seconds from acceptance."""
    slo: str | None
    """Class of the deadline in place of `deadline_s`: a multiple of the time alone (setting `slo_classes`)."""
    drop_if_late: bool | None
    """Drop the job when the deadline passes, in the queue or between two steps, or when no client waits for it."""
    savings: float | None
    """Balance of quality and savings: 0 best quality, 1 most steps saved."""
    fresh_noise: float | None
    """Share of new noise in a reused latent, 0–1."""
    user: str | None
    variation: Variation | Literal["auto", "same", "new"] | None
    """`auto`: another seed of the user's own prompt starts from noise, or from images that the user has not seen.
    `same`: from any image that keeps the quality. `new`: from no image that this user has seen."""
    from_job: str | None
    """Id of a finished job whose image this one starts from (image to image); a clip has the image as first frame."""
    image: bytes | None
    """PNG, JPEG or WebP to start from (image to image); a clip has it as first frame. It stays out of the cache."""
    mask: bytes | None
    """PNG of the size of `image`, whose transparent pixels are generated anew; all others are kept."""
    strength: float | None
    """Share of the steps that run after the image of `from_job` or `image`, above 0 up to 1; default: 0.8, with `mask`
    1. With `continue_job`,
    after the clip's last frame; default: 1, the new frames start from noise."""
    continue_job: str | None
    """Id of a finished job whose clip goes on: the result is that clip, then the new frames."""


def request_message(prompt: str, **fields: Unpack[RequestFields]) -> common_pb2.Request:
    """Return the protobuf Request; InvalidRequestError names an unknown field, or one whose value does not fit."""
    message = common_pb2.Request(prompt=prompt)
    for name, value in fields.items():
        if value is None or (name, value) == ("steps", "auto"):
            continue
        if name not in common_pb2.Request.DESCRIPTOR.fields_by_name:
            known = ", ".join(sorted(common_pb2.Request.DESCRIPTOR.fields_by_name))
            raise InvalidRequestError(name, f"is not a field of a request; the fields are: {known}")
        _check_range(name, value)
        try:
            setattr(message, name, _wire(name, value))
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(name, f"cannot be sent: {error}", value) from error
    return message


def checked_count(n: int) -> int:
    """Return the number of images to ask for; InvalidRequestError for a number that cannot be sent."""
    if not 1 <= n < 2**32:
        raise InvalidRequestError("n", "must be at least 1", n)
    return n


def _check_range(name: str, value: object) -> None:
    """Raise InvalidRequestError for a whole number that does not fit its type; the gateway checks all other rules."""
    bounds = _BOUNDS.get(common_pb2.Request.DESCRIPTOR.fields_by_name[name].cpp_type)
    if bounds and isinstance(value, int) and not bounds[0] <= value <= bounds[1]:
        raise InvalidRequestError(name, f"must be a whole number from {bounds[0]} to {bounds[1]}", value)


def _wire(name: str, value: Any) -> Any:
    if name not in _ENUMS or isinstance(value, int):
        return value
    kind, prefix = _ENUMS[name]
    return getattr(common_pb2, f"{prefix}_{kind(value).name}")
