"""Whatever a client gets wrong is answered over gRPC with the field and the rule."""

from __future__ import annotations

import math
from typing import Any

import grpc
import pytest

from protos import common_pb2, gateway_pb2
from protos.gateway_pb2_grpc import GatewayServiceStub
from services.gateway.lookup import Lookup
from services.gateway.roster import Roster
from shared.domain.errors import ConflictError, InvalidRequestError, NotFoundError, OverloadedError
from shared.runtime import rpc
from shared.runtime.telemetry import METRICS
from tests.flows.conftest import Make
from tests.flows.house import house

WRONG: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("prompt", {"prompt": ""}, "empty"),
    ("prompt", {"prompt": " \n "}, "empty"),
    ("prompt", {"prompt": "x" * 2001}, "at most 2000"),
    ("prompt", {"prompt": "a\x00b"}, "control characters"),
    ("negative_prompt", {"negative_prompt": "\x1b[31m"}, "control characters"),
    ("size", {"width": 65, "height": 64}, "multiples of 8"),
    ("size", {"width": 8, "height": 8}, "from 32 to 128"),
    ("size", {"width": 4_000_000_000, "height": 64}, "from 32 to 128"),
    ("height", {"width": 64}, "go together"),
    ("width", {"height": 64}, "go together"),
    ("steps", {"steps": 0}, "1 to 200"),
    ("steps", {"steps": 201}, "1 to 200"),
    ("steps", {"steps": 4_000_000_000}, "1 to 200"),
    ("guidance", {"guidance": 0.5}, "1 to 30"),
    ("guidance", {"guidance": 31.0}, "1 to 30"),
    ("guidance", {"guidance": math.nan}, "1 to 30"),
    ("guidance", {"guidance": math.inf}, "1 to 30"),
    ("quality", {"quality": "huge"}, "a model served here: auto, large"),
    ("quality", {"quality": "small"}, "a model served here: auto, large"),
    ("modality", {"modality": common_pb2.MODALITY_VIDEO}, "image"),
    ("modality", {"modality": 77}, "one of image, video"),
    ("cache", {"cache": 77}, "one of auto, read, write, off"),
    ("scope", {"scope": 77}, "one of private, tenant, public"),
    ("variation", {"variation": 77}, "one of auto, same, new"),
    ("user", {"scope": common_pb2.SCOPE_PRIVATE}, "scope is private"),
    ("user", {"user": "u" * 201}, "at most 200"),
    ("frames", {"frames": 16}, "must be 1"),
    ("priority", {"priority": 101}, "-100 to 100"),
    ("deadline_s", {"deadline_s": 0.0}, "above 0"),
    ("deadline_s", {"deadline_s": -1.0}, "above 0"),
    ("deadline_s", {"deadline_s": math.nan}, "above 0"),
    ("deadline_s", {"deadline_s": 1.7e308}, "at most 2592000"),
    ("savings", {"savings": 1.1}, "from 0 to 1"),
    ("savings", {"savings": math.nan}, "from 0 to 1"),
    ("fresh_noise", {"fresh_noise": -0.1}, "from 0 to 1"),
)


async def test_every_wrong_field_is_named_with_its_rule(make: Make) -> None:
    async with house(make()) as it, grpc.aio.insecure_channel(it.process.address) as channel:
        stub: Any = GatewayServiceStub(channel)
        for field, fields, rule in WRONG:
            message = gateway_pb2.GenerateRequest(request=common_pb2.Request(**({"prompt": "a fox"} | fields)))
            for method in (stub.Generate, _streamed(stub)):
                with pytest.raises(grpc.RpcError) as caught:
                    await method(message, timeout=10)
                error = rpc.from_rpc_error(caught.value)
                assert isinstance(error, InvalidRequestError), (field, fields, error)
                assert error.field == field, (fields, str(error))
                assert rule in str(error), (fields, str(error))
        assert (await it.client.list_jobs())[0] == []


def _streamed(stub: Any) -> Any:
    async def generate(message: Any, timeout: float) -> None:
        async for _ in stub.GenerateStream(gateway_pb2.GenerateStreamRequest(request=message.request), timeout=timeout):
            pass

    return generate


async def test_a_malformed_message_is_an_invalid_argument(make: Make) -> None:
    async with house(make(large="noop:")) as it, grpc.aio.insecure_channel(it.process.address) as channel:
        call = channel.unary_unary("/afterimage.gateway.v1.GatewayService/Generate")
        with pytest.raises(grpc.RpcError) as caught:
            await call(b"\x0a\xff\xff\xff not a message", timeout=10)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        picture = await it.client.generate("still alive", steps=2)
        assert picture.png


async def test_tenants_keys_pages_and_ids_are_checked_too(make: Make) -> None:
    async with house(make(large="noop:")) as it:
        with pytest.raises(InvalidRequestError, match="idempotency-key"):
            await it.client.generate("a fox", idempotency_key="k" * 201)
        with pytest.raises(InvalidRequestError, match="page_size"):
            await it.client.list_jobs(page_size=1001)
        with pytest.raises(InvalidRequestError, match="page_token"):
            await it.client.list_jobs(page_token="garbage")
        for job_id in ("../../etc/passwd", "x" * 60_000):
            with pytest.raises(NotFoundError, match="no such job"):
                await it.client.get_job(job_id)
        with pytest.raises(NotFoundError, match="no such job"):
            await it.client.cancel("nothing")
        it.client._tenant = "a:b"
        with pytest.raises(InvalidRequestError, match="tenant"):
            await it.client.generate("a fox")


async def test_the_same_key_with_another_body_is_a_conflict_and_with_the_same_one_the_same_job(make: Make) -> None:
    async with house(make(large="noop:")) as it:
        first = await it.client.generate("a fox", steps=2, idempotency_key="k1")
        before = planning_s()
        again = await it.client.generate("a fox", steps=2, idempotency_key="k1")
        with pytest.raises(ConflictError, match="k1"):
            await it.client.generate("a dog", steps=2, idempotency_key="k1")
        assert planning_s() == before, "the key is looked up before anything is planned"
        it.client._tenant = "other"
        theirs = await it.client.generate("a dog", steps=2, idempotency_key="k1")

    assert again.job.id == first.job.id
    assert (again.png, again.seed) == (first.png, first.seed)
    assert theirs.job.id != first.job.id


def planning_s() -> float:
    """Seconds that this process spent on plans of accepted requests so far."""
    return float(METRICS.stage_seconds.labels("plan")._sum.get())


async def test_what_no_workers_memory_holds_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Roster, "pixel_limit", lambda self, model, now: 4096)  # as workers reported it
    async with house(make()) as it:
        with pytest.raises(InvalidRequestError, match=r"^size: frames × pixels must be at most 4096 \(the memory of"):
            await it.client.plan("a fox", width=128, height=64)
        assert await it.client.plan("a fox", width=64, height=64)


async def test_a_retry_while_the_first_try_still_draws_waits_for_the_same_job(make: Make) -> None:
    import asyncio

    async with house(make(large="noop:?step_ms=10")) as it:
        both = await asyncio.gather(*(it.client.generate("a fox", steps=30, idempotency_key="k") for _ in range(2)))
        assert both[0].job.id == both[1].job.id
        assert len((await it.client.list_jobs())[0]) == 1


async def test_a_retry_of_an_accepted_job_is_answered_however_full_the_queue_is(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no service is asked for its plan."""
    import asyncio

    from shared.client import AsyncClient

    async with house(make(large="noop:?step_ms=20", max_rows=1, max_queued=1)) as it:
        running = asyncio.create_task(it.client.generate("first", steps=50))
        while not (jobs := (await it.client.list_jobs())[0]):
            await asyncio.sleep(0.01)
        await it.claimed(jobs[0].job.id)  # it left the queue
        waiting = asyncio.create_task(it.client.generate("second", steps=2, idempotency_key="k2"))
        while not await it.backends.catalog.jobs.queued():
            await asyncio.sleep(0.01)
        async with AsyncClient(it.process.address, retry_s=0) as impatient:
            with pytest.raises(OverloadedError):
                await impatient.generate("third", steps=2)
            monkeypatch.delattr(Lookup, "plan")
            retried = await impatient.generate("second", steps=2, idempotency_key="k2")
        assert retried.job.id == (await waiting).job.id
        await running
