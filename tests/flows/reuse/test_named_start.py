"""Image to image: a request names the job whose image it starts from."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from services.gpu_worker.families import load_family
from services.gpu_worker.jobs.codecs import encode_png
from shared.client import Accepted, AsyncClient, Picture, Progress
from shared.domain.errors import InvalidRequestError, JobFailedError, NotFoundError
from shared.domain.types import JobState, PlanSource
from shared.models import find_card
from shared.runtime.settings import Settings
from tests.flows.conftest import Make
from tests.flows.house import SLOW, house
from tests.redraw import redraw


def difference(one: Picture, other: Picture) -> float:
    """Mean absolute difference of two images, 0–255."""
    pixels = [np.asarray(Image.open(io.BytesIO(image.png)).convert("RGB"), np.float32) for image in (one, other)]
    return float(np.abs(pixels[0] - pixels[1]).mean())


async def test_an_image_starts_from_the_job_that_the_request_names(make: Make) -> None:
    async with house(make(batch_invariant=2)) as it:
        fox = await it.generate("a red fox in the snow", seed=1, user="ana")
        fields: dict[str, Any] = {"seed": 2, "steps": 10, "user": "ana", "from_job": fox.job.id}
        (planned,) = await it.client.plan("a blue wolf at night", strength=0.4, **fields)
        near = await it.generate("a blue wolf at night", strength=0.4, **fields)
        assert planned.job.plan == near.plan
        plan, request = near.plan, near.job.request
        assert (plan.source, plan.start_step, near.steps_run) == (PlanSource.IMAGE, 6, 4)
        assert (request.from_job, request.strength) == (fox.job.id, 0.4)
        assert (plan.entry_id, plan.root, plan.capture_steps) == (fox.job.id, fox.job.id, ())
        assert [(one.prompt, one.chosen) for one in plan.candidates] == [("a red fox in the snow", True)]
        assert f"from the image of job {fox.job.id}, which the request names, at strength 0.4" in plan.reason
        assert (await it.backends.catalog.entries.get(near.job.id)).root == fox.job.id

        row = await it.backends.catalog.jobs.get(near.job.id)  # request and plan determine the image
        family = load_family(find_card(str(make().large)), batch_invariant=2)
        blob = await it.backends.blobs.get(plan.state_key)
        assert encode_png(redraw(family, row.request, row.plan, blob).pixels) == near.png

        default = await it.client.generate("a blue wolf at night", **fields)
        assert (default.job.request.strength, default.steps_run) == (0.8, 8)
        assert difference(near, fox) < difference(default, fox)
        whole = await it.client.generate("a blue wolf at night", strength=1.0, **fields)
        assert (whole.plan.source, whole.steps_run) == (PlanSource.NOISE, 10)
        chained = await it.client.generate("a green wolf", strength=0.5, **{**fields, "from_job": near.job.id})
        assert (chained.plan.entry_id, chained.plan.root) == (near.job.id, fox.job.id)

        again = await it.client.generate("a blue wolf at night", strength=0.4, **fields)
        assert (again.plan.source, again.png) == (PlanSource.EXACT, near.png)
        other = await it.client.generate("a blue wolf at night", strength=0.5, **fields)
        assert other.plan.source is PlanSource.IMAGE
        two = [await it.client.generate_images("a wolf", 2, strength=0.4, **fields) for _ in range(2)]
        assert [one.plan.source for one in two[0]] == [PlanSource.IMAGE] * 2
        assert [one.png for one in two[1]] == [one.png for one in two[0]]


async def test_a_source_that_cannot_be_used_is_named(settings: Settings) -> None:
    settings = settings.model_copy(update={"large": SLOW})
    async with house(settings) as it, AsyncClient(it.process.address, tenant="acme", retry_s=0.0) as stranger:
        private = await it.client.generate("a fox", steps=2, scope="private", user="ana")
        assert (await it.client.generate("a", steps=2, user="ana", from_job=private.job.id)).plan.start_step == 0
        cases: tuple[tuple[AsyncClient, dict[str, Any]], ...] = (
            (it.client, {"from_job": "01jd"}),
            (it.client, {"from_job": private.job.id, "user": "ben"}),
            (it.client, {"from_job": private.job.id}),
            (stranger, {"from_job": private.job.id, "user": "ana"}),
        )
        for client, fields in cases:
            with pytest.raises(NotFoundError, match=f"from_job '{fields['from_job']}': no such job"):
                await client.generate("a wolf", **fields)
            with pytest.raises(NotFoundError, match="no such job"):
                await client.plan("a wolf", **fields)
        stream = it.client.generate_stream("a slow one", steps=200)
        accepted = await anext(stream)
        assert isinstance(accepted, Accepted)
        with pytest.raises(NotFoundError, match=r"job \w+ is (queued|running) and has no image"):
            await it.client.generate("a wolf", from_job=accepted.job_id)
        await it.client.cancel(accepted.job_id)
        await stream.aclose()
        for strength in (0.0, -0.5, 1.1, float("nan")):
            with pytest.raises(InvalidRequestError, match="strength: must be above 0 and at most 1"):
                await it.client.generate("a wolf", user="ana", from_job=private.job.id, strength=strength)
        with pytest.raises(InvalidRequestError, match="strength: must run at least 1 of 10 steps"):
            await it.client.generate("a wolf", user="ana", steps=10, from_job=private.job.id, strength=0.01)
        with pytest.raises(InvalidRequestError, match="strength: needs from_job, continue_job or image"):
            await it.client.generate("a wolf", strength=0.5)


async def test_a_lost_source_fails_the_job_instead_of_starting_from_noise(settings: Settings) -> None:
    async with house(settings.model_copy(update={"large": "noop:", "max_attempts": 1})) as it:
        fox = await it.client.generate("a fox", steps=10)
        row = await it.backends.catalog.jobs.get(fox.job.id)
        await it.backends.blobs.delete([row.result.picture_key])
        with pytest.raises(
            JobFailedError, match=rf"from_job '{fox.job.id}': its result cannot be used: blob .* not there"
        ):
            await it.client.generate("a wolf", steps=10, from_job=fox.job.id)


async def test_a_job_from_a_named_image_goes_on_after_a_restart(settings: Settings) -> None:
    slow = settings.model_copy(update={"large": SLOW, "drain_s": 0.1})
    async with house(slow) as it:
        fox = await it.client.generate("a fox", steps=2)
        stream = it.client.generate_stream(
            "a wolf", steps=200, from_job=fox.job.id, strength=0.5, idempotency_key="one"
        )
        job_id = await anext(event.job_id async for event in stream if isinstance(event, Progress))
        await stream.aclose()
    async with house(slow) as it:
        wolf = await it.client.generate("a wolf", steps=200, from_job=fox.job.id, strength=0.5, idempotency_key="one")
        assert (wolf.job.id, wolf.job.state) == (job_id, JobState.SUCCEEDED)
        assert (wolf.plan.source, wolf.plan.start_step, wolf.plan.degraded) == (PlanSource.IMAGE, 100, ())
