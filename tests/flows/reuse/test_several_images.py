"""Several images of one request: different by construction, under one idempotency key."""

from __future__ import annotations

import asyncio
from itertools import combinations
from typing import Any

import grpc
import pytest

from protos import gateway_pb2
from protos.gateway_pb2_grpc import GatewayServiceStub
from scripts.stack.servers import free_port
from shared.client import Accepted, AsyncClient, Client, ImagesFailedError, Picture, Progress
from shared.client.request_fields import request_message
from shared.domain.errors import CancelledError, ConflictError, InvalidRequestError, OverloadedError
from shared.domain.types import JobState, PlanSource
from shared.runtime.settings import Settings
from tests.flows.conftest import Make
from tests.flows.house import SLOW, House, house
from tests.flows.reuse.test_named_start import difference

DUCK = "a yellow duck on a beach"


async def rows(it: House) -> int:
    return len((await it.backends.catalog.jobs.list(limit=100))[0])


@pytest.mark.parametrize("rules", ["relation", "paper"])
@pytest.mark.parametrize("user", ["", "ana"])
async def test_no_two_images_of_a_request_start_from_one_root(settings: Settings, user: str, rules: str) -> None:
    settings = settings.model_copy(
        update={"large": "noop:", "predictor": "always", "image_tier": "off", "root_share": 1.0, "reuse_rules": rules}
    )
    async with house(settings) as it:
        fields: dict[str, Any] = {"steps": 10, "variation": "same", "user": user}
        first = await it.generate(DUCK, seed=1, **fields)
        edit = await it.generate(f"{DUCK} at night", seed=2, **fields)
        assert edit.plan.root == first.job.id
        other = await it.generate(DUCK, seed=50, **{**fields, "variation": "new", "cache": "write"})
        assert other.plan.source is PlanSource.NOISE

        planned = await it.client.plan(DUCK, n=4, seed=10, **fields)
        four = await it.client.generate_images(DUCK, 4, seed=10, **fields)
        assert [view.job.plan for view in planned] == [picture.plan for picture in four]
        assert [picture.seed for picture in four] == [10, 11, 12, 13]
        assert [picture.index for picture in four] == [0, 1, 2, 3]
        assert [picture.plan.source for picture in four[2:]] == [PlanSource.NOISE] * 2
        assert {picture.plan.root for picture in four[:2]} == {first.job.id, other.job.id}
        refused = {one.reason for one in four[3].plan.candidates if one.reason.startswith("refused")}
        assert refused == {"refused: another image of this request starts from this root"}
        for picture in four:
            await it.settled(picture)

        again = await it.client.generate_images(DUCK, 4, seed=10, **fields)
        assert [picture.plan.source for picture in again] == [PlanSource.EXACT] * 4
        assert [picture.png for picture in again] == [picture.png for picture in four]


async def test_an_image_is_no_copy_of_the_seed_beside_it(settings: Settings) -> None:
    """Another T: image 2 starts from noise of seed 8, which also began the only entry that image 1 might start from."""
    settings = settings.model_copy(update={"large": "noop:", "predictor": "always", "image_tier": "off"})
    async with house(settings) as it:
        await it.generate(DUCK, seed=8, steps=10)
        alone = await it.client.plan(DUCK, seed=7, steps=50, variation="same")
        assert alone[0].job.plan.source is PlanSource.LATENT
        first, second = await it.client.plan(DUCK, n=2, seed=7, steps=50, variation="same")
        assert first.job.plan.source is PlanSource.NOISE
        assert "began from the noise of another image" in first.job.plan.reason
        assert second.job.plan.source is PlanSource.LATENT  # its own seed's


async def test_the_images_of_a_request_differ_as_its_seeds_do(make: Make) -> None:
    async with house(make(image_tier="off", predictor="always")) as it:
        await it.generate(DUCK, seed=1)
        alone = [await it.client.generate(DUCK, seed=9 + n, steps=10, cache="off") for n in range(3)]
        three = await it.client.generate_images(DUCK, 3, seed=9, steps=10, variation="same")
    assert three[0].plan.source is PlanSource.LATENT
    for one, other in combinations(range(3), 2):
        assert difference(three[one], three[other]) > 0.5 * difference(alone[one], alone[other])


async def test_one_key_covers_all_images(settings: Settings) -> None:
    async with house(settings.model_copy(update={"large": "noop:"})) as it:
        ask = it.client.generate_images
        first = await ask(DUCK, 3, steps=10, idempotency_key="k")
        again = await ask(DUCK, 3, steps=10, idempotency_key="k")
        assert [one.job.id for one in again] == [one.job.id for one in first]
        assert [one.png for one in again] == [one.png for one in first]
        assert await rows(it) == 3

        def blocking() -> list[Picture]:
            with Client(it.process.address, retry_s=0.0) as client:
                return client.generate_images(DUCK, 3, steps=10, idempotency_key="k")

        assert [one.job.id for one in await asyncio.to_thread(blocking)] == [one.job.id for one in first]
        streamed = [event async for event in it.client.generate_stream(DUCK, n=3, steps=10, idempotency_key="k")]
        assert {one.job.id for one in streamed if isinstance(one, Picture)} == {one.job.id for one in first}
        for other in (ask(DUCK, 2, steps=10, idempotency_key="k"), ask("a", 3, steps=10, idempotency_key="k")):
            with pytest.raises(ConflictError, match="idempotency-key 'k'"):
                await other
        with pytest.raises(ConflictError):
            await it.client.generate(DUCK, steps=10, idempotency_key="k")
        assert await rows(it) == 3


async def test_a_failed_image_is_named_and_the_others_are_there(settings: Settings) -> None:
    async with house(settings.model_copy(update={"large": SLOW, "max_rows": 2})) as it:
        jobs: dict[int, str] = {}
        pictures: dict[int, Picture] = {}
        steps: set[int] = set()

        async def watch() -> None:
            async for event in it.client.generate_stream(DUCK, n=3, steps=40, idempotency_key="k"):
                match event:
                    case Accepted():
                        jobs[event.index] = event.job_id
                        if len(jobs) == 3:
                            await it.client.cancel(jobs[1])
                    case Progress():
                        assert event.job_id == jobs[event.index]
                        steps.add(event.index)
                    case Picture():
                        pictures[event.index] = event

        with pytest.raises(
            ImagesFailedError, match=r"^1 of 3 images failed: image 2: job \w+ was cancelled$"
        ) as caught:
            await watch()
        assert set(pictures) == {0, 2} <= steps
        assert isinstance(caught.value.errors[1], CancelledError)
        assert [one.job.id for one in caught.value.pictures] == [jobs[0], jobs[2]]
        with pytest.raises(ImagesFailedError) as repeated:
            await it.client.generate_images(DUCK, 3, steps=40, idempotency_key="k")
        assert [one.png for one in repeated.value.pictures] == [pictures[0].png, pictures[2].png]

        request = gateway_pb2.GenerateRequest(request=request_message(DUCK, steps=40), n=3)
        async with grpc.aio.insecure_channel(it.process.address) as channel:
            stub: Any = GatewayServiceStub(channel)
            reply = await stub.Generate(request, metadata=(("idempotency-key", "k"),))
        assert [(one.code, bool(one.picture)) for one in reply.images] == [("", True), ("CANCELLED", False), ("", True)]
        assert reply.images[1].job.id == jobs[1]
        assert not reply.HasField("job")


async def test_a_restart_loses_and_doubles_no_image(settings: Settings) -> None:
    changes = {"large": SLOW, "max_rows": 1, "drain_s": 0.1, "listen": f"127.0.0.1:{free_port()}"}
    settings = settings.model_copy(update=changes)
    async with AsyncClient(settings.listen, retry_s=120.0) as client:
        stream = client.generate_stream(DUCK, n=3, steps=20)
        events: list[Any] = []
        async with house(settings):
            async for event in stream:
                events.append(event)
                if isinstance(event, Picture):  # the second image runs or waits
                    break

        async def rest() -> None:
            events.extend([event async for event in stream])

        reading = asyncio.create_task(rest())
        async with house(settings) as it:
            await reading
            assert await rows(it) == 3
            states = {job.state for job in (await it.backends.catalog.jobs.list(limit=9))[0]}
    assert states == {JobState.SUCCEEDED}
    assert sorted(event.index for event in events if isinstance(event, Accepted)) == [0, 1, 2]
    assert sorted(event.index for event in events if isinstance(event, Picture)) == [0, 1, 2]


async def test_each_image_takes_a_place_in_the_queue(settings: Settings) -> None:
    async with house(settings.model_copy(update={"large": SLOW, "max_rows": 1, "max_queued": 4})) as it:
        stream = it.client.generate_stream(DUCK, n=3, steps=200)
        ids = [event.job_id for event in [await anext(stream) for _ in range(3)] if isinstance(event, Accepted)]
        async with asyncio.timeout(20):
            while (await it.client.get_job(ids[0])).job.state is not JobState.RUNNING:
                await asyncio.sleep(0.02)
        with pytest.raises(OverloadedError, match="max_queued is 4, this request asks for 4"):
            await it.client.generate_images(DUCK, 4, steps=2)
        assert await rows(it) == 3
        for n in (0, 5, 9):
            with pytest.raises(InvalidRequestError, match=r"n: must be (at least 1|from 1 to 4 \(max_queued\))"):
                await it.client.generate_images(DUCK, n)
        with pytest.raises(InvalidRequestError, match="seed: must leave room for 2 seeds"):
            await it.client.generate_images(DUCK, 2, seed=2**64 - 1)
        for job_id in ids:
            await it.client.cancel(job_id)
        await stream.aclose()
