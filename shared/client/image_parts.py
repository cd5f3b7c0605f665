"""A request with an image to start from, as the messages of one call: a message of the gateway's port is small."""

from __future__ import annotations

from collections.abc import Iterator

from protos import gateway_pb2

PART_BYTES = 2**16


def has_image(request: gateway_pb2.GenerateStreamRequest) -> bool:
    """Return whether the request has an image, or a mask, which the gateway refuses without an image."""
    return bool(request.request.image or request.request.mask)


def in_parts(request: gateway_pb2.GenerateStreamRequest) -> Iterator[gateway_pb2.GenerateFromImageRequest]:
    """Yield the messages of GenerateFromImage: the request without its image, then the image and mask in parts."""
    first = gateway_pb2.GenerateFromImageRequest(request=request)
    for field in ("image", "mask"):
        first.request.request.ClearField(field)
    yield first
    for field in ("image", "mask"):
        data = getattr(request.request, field)
        for start in range(0, len(data), PART_BYTES):
            yield gateway_pb2.GenerateFromImageRequest(**{field: data[start : start + PART_BYTES]})
