"""Uploaded images: checked, turned into a PNG of the request's size, and the plan that starts from one (ADR 26)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from protos import gateway_pb2 as pb
from shared.blobs import Blobs
from shared.domain.errors import AfterimageError, DeadlineError, InvalidRequestError, OverloadedError
from shared.domain.plan_rules import noise_plan, steps_at
from shared.domain.types import (
    PICTURE_CODEC,
    Lead,
    ModelPlan,
    Plan,
    PlanSource,
    Request,
    Size,
    Source,
    Upload,
)
from shared.models.card import ModelCard

FORMATS = ("PNG", "JPEG", "WEBP")
MOST_PIXELS = 2**24
"""Pixels of an uploaded image at most, which bounds the memory of decoding it to 128 MiB."""
RECEIVED_AT_ONCE = 16
"""Uploads that are in memory at the same time: 256 MiB at max_upload_bytes, and up to three times that while all are
read."""
RECEIVE_S = 120.0
"""Seconds in which all parts of an upload must arrive."""
_AT_ONCE = 2
"""Uploads that are decoded at the same time."""


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A checked image, not stored yet."""

    png: bytes
    sha256: str
    masked: bool

    def of_job(self, job_id: str) -> Upload:
        """Return the upload of one job: each job has its own blob, which ends with the job."""
        return Upload(f"uploads/{job_id}-{self.sha256[:16]}.png", self.sha256, self.masked)


class Receiving:
    """The requests whose image is received, until it is stored: few at once bound the memory. Calls over gRPC and over
    HTTP count together. A tenant may take a place while it has fewer than are free, and a subject while it has fewer
    than its tenant still could have, so others find room.
    """

    def __init__(self, most_bytes: int) -> None:
        """most_bytes: of an image with its mask."""
        self._most_bytes, self._held = most_bytes, Counter[tuple[str, str]]()

    @property
    def count(self) -> int:
        """Requests whose image is in memory."""
        return self._held.total()

    @contextlib.contextmanager
    def by(self, tenant: str, subject: str) -> Iterator[None]:
        """Count one request while its image is in memory. Raises OverloadedError above the tenant's or subject's share.

        subject: of the key; empty: anonymous callers, who are one.
        """
        own, every = self._held[tenant, subject], self.count
        of_tenant = sum(count for (name, _), count in self._held.items() if name == tenant)
        left = (RECEIVED_AT_ONCE - every - of_tenant + 1) // 2  # that the tenant could still take, were it alone
        if left <= 0 or (subject and own >= left):
            said = f"too many images are being received ({own} of yours, {of_tenant} of your tenant, {every} of all)"
            raise OverloadedError(said, retry_after_s=1.0)
        self._held[tenant, subject] += 1
        try:
            yield
        finally:
            self._held[tenant, subject] -= 1
            self._held += Counter()  # without those that have none

    async def whole(self, parts: AsyncIterator[pb.GenerateFromImageRequest]) -> pb.GenerateStreamRequest:
        """Return the request with its image, once the client has sent all parts. Raises InvalidRequestError for an
        image above the limit as soon as it is, and DeadlineError for one that takes too long."""
        request, image, mask = pb.GenerateStreamRequest(), bytearray(), bytearray()
        try:
            async with asyncio.timeout(RECEIVE_S):
                first = True
                async for part in parts:
                    if part.HasField("request") != first:
                        raise InvalidRequestError("request", "must be in the first message of the call, and only there")
                    if first:
                        request, first = part.request, False
                    image += part.image
                    mask += part.mask
                    check_bytes(len(image) + len(mask), self._most_bytes)
        except TimeoutError as error:
            raise DeadlineError(f"image: must arrive within {RECEIVE_S:g} s") from error
        request.request.image, request.request.mask = bytes(image), bytes(mask)
        return request


def check_bytes(given: int, most: int) -> None:
    """Raise InvalidRequestError for an image with its mask that has more bytes than the setting max_upload_bytes."""
    if given > most:
        rule = f"must have at most {most} bytes with its mask (max_upload_bytes)" if most else "uploads are turned off"
        raise InvalidRequestError("image", rule, f"{given} bytes")


class Uploads:
    """Reads uploads and stores them for their jobs."""

    def __init__(self, blobs: Blobs) -> None:
        # a pool of its own: a cancelled call leaves its thread decoding, which must keep its place
        self._blobs, self._decoding = blobs, ThreadPoolExecutor(_AT_ONCE, "uploads")

    async def read(self, image: bytes, mask: bytes, size: Size) -> Uploaded:
        """Check and convert an image on a thread, few at once. Raises InvalidRequestError, which names the field."""
        if find_spec("PIL") is None:
            raise InvalidRequestError("image", "cannot be read: this gateway is installed without Pillow")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._decoding, _uploaded, image, mask, size)

    def close(self) -> None:
        self._decoding.shutdown(wait=False, cancel_futures=True)

    async def store(self, uploaded: Uploaded, requests: Sequence[Request]) -> None:
        """Store the upload for each request. Raises what the blob store raises."""
        for request in requests:
            if request.upload is not None:
                await self._blobs.put(request.upload.key, uploaded.png)

    async def drop(self, requests: Sequence[Request]) -> None:
        """Delete the uploads of requests that became no jobs. The orphan collector deletes what stays."""
        with contextlib.suppress(AfterimageError):
            await self._blobs.delete([one.upload.key for one in requests if one.upload is not None])


def upload_plan(request: Request, card: ModelCard) -> Plan:
    """Return the plan that starts from the uploaded image, by the model that the request asks for. It needs no search
    and captures no states."""
    upload = request.upload
    assert upload is not None
    start = request.steps - steps_at(request.strength, request.steps)
    lead = Lead("", upload.key, upload.sha256, 1, card.frames.held(request.frames, 1)) if request.frames > 1 else None
    kept = " It keeps the pixels outside of the mask." if upload.masked else ""
    kept += " The clip begins with the image." if lead is not None else ""
    at = f"at strength {request.strength:g}."
    if start <= 0:
        nothing = "" if kept else f" Nothing is left of the given image {at}"
        said = f"Generated from noise.{nothing}{kept}"
    else:
        said = f"Starts after {start} of {request.steps} steps from the given image, {at}{kept}"
    plan = noise_plan(request, card.name, card.weights_hash, (), said, step_reuse=card.reuse_key)
    plan = replace(plan, lead=lead, uncached=True)
    if start <= 0:
        return plan
    return replace(
        plan,
        source=PlanSource.UPLOAD,
        start_step=start,
        sources=(Source("", upload.key, upload.sha256, PICTURE_CODEC),),
        may_run=(ModelPlan(card.name, start),),
        miss_model=card.name,
    )


def _uploaded(image: bytes, mask: bytes, size: Size) -> Uploaded:
    from PIL import Image, ImageOps

    picture = _decoded("image", image)
    alpha = _transparency(mask, picture.size) if mask else None
    fitted = ImageOps.fit(picture, (size.width, size.height), Image.Resampling.LANCZOS)
    if alpha is not None:  # without new grey values: a pixel is kept or generated anew
        fitted.putalpha(ImageOps.fit(alpha, (size.width, size.height), Image.Resampling.NEAREST))
    out = io.BytesIO()
    fitted.save(out, "PNG")  # without the upload's metadata, such as the place of a photo
    png = out.getvalue()
    return Uploaded(png, hashlib.sha256(png).hexdigest(), bool(mask))


def _decoded(field: str, data: bytes) -> Any:
    """Return the upright picture, RGB on white. The size is checked before a pixel is decoded."""
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            pixels = opened.width * opened.height
            if pixels > MOST_PIXELS:
                rule = f"must have at most {MOST_PIXELS} pixels"
                raise InvalidRequestError(field, rule, f"{opened.width}x{opened.height}")
            # a photo with a second picture for other screens (MPO) counts as its first
            frames = getattr(opened, "n_frames", 1)
            if frames > 1 and opened.format in FORMATS:
                raise InvalidRequestError(field, "must be one picture, no animation", f"{frames} frames")
            picture = ImageOps.exif_transpose(opened)
            if not picture.has_transparency_data or field == "mask":
                return picture.convert("RGBA" if field == "mask" else "RGB")
            picture = picture.convert("RGBA")
            white = Image.new("RGBA", picture.size, "white")
            white.alpha_composite(picture)
            return white.convert("RGB")
    except InvalidRequestError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:  # far above the limit
        raise InvalidRequestError(field, f"must have at most {MOST_PIXELS} pixels", "more") from error
    except Exception as error:  # decoders raise many kinds of errors for broken files
        rule = f"must be a whole PNG, JPEG or WebP image ({type(error).__name__})"
        raise InvalidRequestError(field, rule, f"{len(data)} bytes") from error


def _transparency(mask: bytes, size: tuple[int, int]) -> Any:
    """Return the mask as 0 where it is mostly transparent, and 255 elsewhere."""
    picture = _decoded("mask", mask)
    if picture.size != size:
        rule = f"must have the size of the image, {size[0]}x{size[1]}"
        raise InvalidRequestError("mask", rule, f"{picture.width}x{picture.height}")
    alpha = picture.getchannel("A").point(lambda value: 255 if value > 127 else 0)
    if alpha.getextrema()[0] > 0:
        raise InvalidRequestError("mask", "must have transparent pixels, which are generated anew")
    return alpha
