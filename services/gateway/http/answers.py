"""Finished jobs as OpenAI's images, each with a block that says where it came from."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from services.gateway.http.api import Api
from services.gateway.http.errors import described
from services.gateway.http.fields import EditFields, ImageFields
from services.gateway.http.identity import caller
from services.gateway.http.pictures import Output
from services.gateway.http.requests import ignored_of
from shared.client.views import Failed, Picture
from shared.domain.types import PlanSource


@dataclass(frozen=True)
class ImageAnswers:
    """Answers to one request."""

    api: Api
    fields: ImageFields
    base: str
    """Address that image URLs begin with."""
    tenant: str
    """Tenant of the request, whose turn its conversions take."""

    @classmethod
    def to(cls, request: Request, fields: ImageFields, api: Api) -> ImageAnswers:
        base = api.settings.http_public_url or str(request.base_url)
        return cls(api, fields, base.rstrip("/"), caller(request).tenant)

    @property
    def event(self) -> str:
        """The first part of the names of a stream's events."""
        return "image_edit" if isinstance(self.fields, EditFields) else "image_generation"

    @property
    def output(self) -> Output:
        return self.fields.output_format or "png"

    async def whole(self, images: Sequence[Picture | Failed]) -> dict[str, Any]:
        """Return the body of the answer. Raises the first error where no image succeeded."""
        pictures = [one for one in images if isinstance(one, Picture)]
        failed = [one for one in images if isinstance(one, Failed)]
        if not pictures:
            raise failed[0].error
        return {
            "created": int(time.time()),
            "data": [await self.image(one) for one in pictures],
            "size": str(pictures[0].job.request.size),
            "output_format": self.output,
            "background": "opaque",
            "afterimage": {"failed": [failure(one) for one in failed], "ignored": ignored_of(self.fields)},
        }

    async def image(self, picture: Picture) -> dict[str, Any]:
        """Return one image: its bytes, or an address where they are."""
        told = {"afterimage": origin(picture)}
        if self.fields.response_format == "url":
            query = self.api.signer.query(picture.job.id, self.output, time.time())
            return {"url": f"{self.base}/v1/images/{picture.job.id}/content?{query}", **told}
        return {"b64_json": await self.base64(await self._png(picture)), **told}

    async def base64(self, png: bytes) -> str:
        quality = self.fields.output_compression
        image = await self.api.conversions.image(self.tenant, png, self.output, quality, made=True)
        return base64.b64encode(image).decode()

    async def _png(self, picture: Picture) -> bytes:
        """Return the image, also where it was too large for a gRPC message."""
        if picture.png:
            return picture.png
        return await self.api.calls.answers.picture(await self.api.jobs.get(picture.job.id))


def origin(picture: Picture) -> dict[str, Any]:
    """Return where the image came from, and what that saved."""
    job, plan = picture.job, picture.plan
    steps = plan.run_steps(job.request.steps)
    lost = picture.steps_run > steps - plan.start_step  # the start was lost, and the job ran from noise
    saved = (
        steps if plan.source is PlanSource.EXACT else 0 if lost or plan.source is PlanSource.UPLOAD else plan.start_step
    )
    return {
        "index": picture.index,
        "job_id": job.id,
        "source": plan.source.value,
        "similarity": round(plan.similarity, 4),
        "start_step": plan.start_step,
        "steps": steps,
        "steps_run": picture.steps_run,
        "steps_saved": saved,
        "skipped": round(picture.skipped, 4),
        "model": picture.model,
        "seed": job.request.seed,
        "seconds": round(picture.timings.total_s, 4),
        "reason": plan.reason,
        "degraded": list(plan.degraded),
        "warnings": list(job.warnings),
    }


def failure(failed: Failed) -> dict[str, Any]:
    """Return the reason why there is no such image."""
    return {"index": failed.index, "job_id": failed.job_id, **described(failed.error)[1]}
