"""A request sends the image along that it starts from."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shared.client import Accepted, Picture, Progress
from shared.client.image_parts import PART_BYTES
from shared.domain.errors import InvalidRequestError, JobFailedError
from shared.domain.types import JobState, PlanSource
from shared.runtime.settings import Settings
from tests import tiny as tiny_models
from tests.flows.conftest import Make
from tests.flows.house import SLOW, House, house

OURS: dict[str, Any] = {"seed": 2, "steps": 10, "user": "ana"}


def png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def pixels(picture: Picture) -> Any:
    return np.asarray(Image.open(io.BytesIO(picture.png)).convert("RGB"), np.float32)


RED = png(Image.new("RGB", (64, 64), (230, 20, 20)))


async def uploads(it: House) -> list[str]:
    return [blob.key async for blob in it.backends.blobs.list("uploads/")]


async def deleted(it: House) -> None:
    """Wait until no upload is left: the worker deletes an upload after it has answered."""
    async with asyncio.timeout(10.0):
        while await uploads(it):
            await asyncio.sleep(0.01)


async def test_an_image_starts_from_an_upload_and_stays_out_of_the_cache(make: Make) -> None:
    async with house(make()) as it:
        near = await it.client.generate("a red fox", image=RED, strength=0.3, **OURS)
        plan, request = near.plan, near.job.request
        assert (plan.source, plan.start_step, near.steps_run) == (PlanSource.UPLOAD, 7, 3)
        assert "from the given image, at strength 0.3" in plan.reason
        again = await it.client.generate("a red fox", image=RED, strength=0.3, **OURS)
        assert (again.plan.source, again.png) == (PlanSource.UPLOAD, near.png)
        default = await it.client.generate("a red fox", image=RED, **OURS)
        assert (default.job.request.strength, default.steps_run) == (0.8, 8)
        red = np.asarray([230, 20, 20], np.float32)
        assert np.abs(pixels(near) - red).mean() < np.abs(pixels(default) - red).mean()
        several = await it.client.generate_images("a red fox", n=2, image=RED, **OURS)
        assert [one.plan.source for one in several] == [PlanSource.UPLOAD] * 2
        (planned,) = await it.client.plan("a red fox", image=RED, strength=0.3, **OURS)
        assert (planned.job.plan.source, planned.job.plan.start_step) == (PlanSource.UPLOAD, 7)

        # what grows from it stays out of the cache too
        grown = await it.client.generate("a red wolf", from_job=near.job.id, strength=0.5, **OURS)
        assert (grown.plan.source, grown.plan.uncached, request.cache.writes) == (PlanSource.IMAGE, True, False)
        own = await it.generate("a red fox", **OURS)
        entries, _ = await it.backends.catalog.entries.page(10)
        assert {entry.id for entry in entries} == {own.job.id}
        await deleted(it)


async def test_a_mask_keeps_what_it_does_not_name(make: Make, tmp_path: Path) -> None:
    large = tiny_models.build(tmp_path / "models", clip=False) / "large"  # of two levels: its pixels change by less
    mask = Image.new("RGBA", (64, 64), "white")
    mask.paste((0, 0, 0, 0), (0, 0, 32, 64))
    async with house(make(large=str(large))) as it:
        whole = await it.client.generate("a blue fish", image=RED, strength=0.1, **OURS)
        part = await it.client.generate("a blue fish", image=RED, mask=png(mask), **OURS)
        assert (part.plan.source, part.steps_run, part.job.request.strength) == (PlanSource.NOISE, 10, 1.0)
        assert "keeps the pixels outside of the mask" in part.plan.reason
        far = np.abs(pixels(part) - pixels(whole)).mean(axis=(0, 2))
        assert far[:20].mean() > 5 * far[-20:].mean()
        await deleted(it)


async def test_an_image_of_many_parts_is_sent_along(make: Make) -> None:
    pixels_of_noise = np.random.default_rng(7).integers(0, 256, (512, 512, 3), np.uint8)
    large = png(Image.fromarray(pixels_of_noise))
    assert len(large) > 3 * PART_BYTES
    async with house(make(large="noop:")) as it:
        key: dict[str, Any] = {"idempotency_key": "one"}
        several = await it.client.generate_images("a fox", n=3, image=large, strength=0.5, **OURS, **key)
        assert [one.job.plan.start_step for one in several] == [5] * 3
        assert [one.job.request.seed for one in several] == [2, 3, 4]
        again = await it.client.generate_images("a fox", n=3, image=large, strength=0.5, **OURS, **key)
        assert [one.job.id for one in again] == [one.job.id for one in several]
        (planned,) = await it.client.plan("a fox", image=large, strength=0.5, **OURS)
        assert planned.job.plan.start_step == 5


async def test_what_goes_with_an_upload(make: Make) -> None:
    async with house(make(max_upload_bytes=1000)) as it:
        for fields, said in (
            ({"image": RED, "from_job": "x"}, "image: name one start"),
            ({"image": RED, "cache": "write"}, "cache: must be auto or off with an image"),
            ({"image": RED, "scope": "public"}, "scope: must be private or tenant with an image"),
            ({"mask": RED}, "mask: needs image"),
            ({"image": bytes(1001)}, "image: must have at most 1000 bytes"),
            ({"image": b"?"}, "image: must be a whole PNG, JPEG or WebP"),
        ):
            with pytest.raises(InvalidRequestError, match=said):
                await it.client.generate("a fox", **{**OURS, **fields})


async def test_a_lost_upload_fails_the_job(settings: Settings) -> None:
    slow = settings.model_copy(update={"large": SLOW, "max_attempts": 1, "max_rows": 1})
    async with house(slow) as it:
        before = it.client.generate_stream("a fox", steps=50)
        await anext(event async for event in before if isinstance(event, Progress))
        waiting = it.client.generate_stream("a wolf", image=RED, steps=10)
        await anext(event async for event in waiting if isinstance(event, Accepted))
        (key,) = await uploads(it)
        await it.backends.blobs.delete([key])
        await before.aclose()
        with pytest.raises(JobFailedError, match=r"image: cannot be used: blob .* not there"):
            _ = [event async for event in waiting]


async def test_a_job_from_an_upload_goes_on_after_a_restart(settings: Settings) -> None:
    slow = settings.model_copy(update={"large": SLOW, "drain_s": 0.1})
    fields: dict[str, Any] = {"steps": 200, "image": RED, "strength": 0.5, "idempotency_key": "one"}
    async with house(slow) as it:
        stream = it.client.generate_stream("a wolf", **fields)
        job_id = await anext(event.job_id async for event in stream if isinstance(event, Progress))
        await stream.aclose()
    async with house(slow) as it:
        wolf = await it.client.generate("a wolf", **fields)
        assert (wolf.job.id, wolf.job.state) == (job_id, JobState.SUCCEEDED)
        assert (wolf.plan.source, wolf.plan.start_step, wolf.plan.degraded) == (PlanSource.UPLOAD, 100, ())
        await deleted(it)
