"""A request with an image to start from, as the messages of one call: a message of the gateway's port is small."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from protos import gateway_pb2

PART_BYTES = 2**16
TAKEN_S = 1.0
"""Seconds for which the image waits for the server's word."""


def has_image(request: gateway_pb2.GenerateStreamRequest) -> bool:
    """Return whether the request has an image, or a mask, which the gateway refuses without an image."""
    return bool(request.request.image or request.request.mask)


def sent_in_parts(method: Callable[..., Any], request: gateway_pb2.GenerateStreamRequest, **options: Any) -> Any:
    """Call GenerateFromImage or PlanFromImage; return gRPC's call.

    The image follows once the server has taken the call. A call that is refused while parts are sent would end with an
    error of gRPC's own instead of the server's.
    """

    async def taken() -> bool:
        with contextlib.suppress(TimeoutError):  # an older server says nothing before its answer
            await asyncio.wait_for(call.initial_metadata(), TAKEN_S)
        return not call.done()

    call = method(_parts(request, taken), **options)
    return call


async def _parts(
    request: gateway_pb2.GenerateStreamRequest, taken: Callable[[], Awaitable[bool]]
) -> AsyncIterator[gateway_pb2.GenerateFromImageRequest]:
    """Yield the request without its image, then the image and mask in parts if the call is taken."""
    first = gateway_pb2.GenerateFromImageRequest(request=request)
    for field in ("image", "mask"):
        first.request.request.ClearField(field)
    yield first
    if not await taken():
        return
    for field in ("image", "mask"):
        data = getattr(request.request, field)
        for start in range(0, len(data), PART_BYTES):
            yield gateway_pb2.GenerateFromImageRequest(**{field: data[start : start + PART_BYTES]})
