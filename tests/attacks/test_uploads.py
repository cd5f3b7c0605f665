"""An image is sent along in parts: strangers send none, nobody fills the memory, and what is left leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest

from protos import common_pb2, gateway_pb2
from services.gateway import uploads
from services.gateway.service import GatewayService
from shared.client import AsyncClient
from shared.domain.errors import OverloadedError, UnauthenticatedError
from shared.domain.identity import Role, parsed
from shared.runtime import rpc
from shared.runtime.settings import Settings
from tests.attacks.conftest import Guarded
from tests.flows.reuse.test_uploads import RED

pytestmark = pytest.mark.asyncio(loop_scope="session")

Part = gateway_pb2.GenerateFromImageRequest
BEGUN = Part(request=gateway_pb2.GenerateStreamRequest(request=common_pb2.Request(prompt="a fox")))


@contextlib.asynccontextmanager
async def sending(guarded: Guarded, subject: str, *messages: Part, over: bool = True) -> AsyncIterator[Any]:
    """The call of a client that sends these messages; it goes on sending unless `over`."""
    async with grpc.aio.insecure_channel(guarded.address, options=rpc.channel_options(2**26)) as channel:
        stub = channel.stream_stream(
            "/afterimage.gateway.v1.GatewayService/GenerateFromImage",
            request_serializer=Part.SerializeToString,
            response_deserializer=gateway_pb2.GenerateStreamResponse.FromString,
        )
        key = guarded.keys.get(subject)
        call: Any = stub(metadata=(("authorization", f"Bearer {key}"),) if key else None, timeout=10.0)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the test reads how it ended
            for message in messages:
                await call.write(message)
            if over:
                await call.done_writing()
        try:
            yield call
        finally:
            call.cancel()


async def ended(call: Any) -> tuple[grpc.StatusCode, str]:
    return await call.code(), await call.details()


def receiving(guarded: Guarded) -> uploads.Receiving:
    (gateway,) = (one for one in guarded.house.process.services if isinstance(one, GatewayService))
    return gateway._receiving


async def until(guarded: Guarded, count: int) -> None:
    async with asyncio.timeout(5.0):
        while receiving(guarded).count != count:
            await asyncio.sleep(0.01)


async def test_a_stranger_is_refused_before_a_part_is_read(guarded: Guarded) -> None:
    async with sending(guarded, "nobody", BEGUN, over=False) as call:
        assert (await ended(call))[0] is grpc.StatusCode.UNAUTHENTICATED
        assert receiving(guarded).count == 0


async def test_a_refused_upload_says_why_however_large_it_is(guarded: Guarded) -> None:
    async with AsyncClient(guarded.address, api_key="aik_none", retry_s=0.0) as client:
        for _ in range(10):
            with pytest.raises(UnauthenticatedError):
                await client.generate("a fox", image=bytes(2**22))
            with pytest.raises(UnauthenticatedError):
                await client.plan("a fox", image=bytes(2**22))


async def test_parts_above_the_limits_end_the_call(guarded: Guarded, settings: Settings) -> None:
    async with sending(guarded, "alice", BEGUN, Part(image=bytes(2**18)), over=False) as call:
        code, said = await ended(call)
        assert (code, "larger than max" in said) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True), said
    parts: Iterator[Part] = (Part(image=bytes(2**16)) for _ in range(settings.max_upload_bytes // 2**16 + 1))
    async with sending(guarded, "alice", BEGUN, *parts, over=False) as call:
        code, said = await ended(call)
        assert (code, "image: must have at most 16777216 bytes" in said) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    async with sending(guarded, "alice", BEGUN, BEGUN, over=False) as call:
        code, said = await ended(call)
        assert (code, "first message" in said) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    await until(guarded, 0)


async def test_an_abandoned_upload_leaves_nothing(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    backends = guarded.house.backends
    before = (await guarded.house.backends.catalog.jobs.list(tenant="acme", subject=None, state=None, limit=1000))[0]
    async with sending(guarded, "alice", BEGUN, Part(image=RED), over=False):
        await until(guarded, 1)
    monkeypatch.setattr(uploads, "RECEIVE_S", 0.05)
    async with sending(guarded, "alice", BEGUN, Part(image=RED), over=False) as call:
        assert await ended(call) == (grpc.StatusCode.DEADLINE_EXCEEDED, "image: must arrive within 0.05 s")
    await until(guarded, 0)
    after = (await backends.catalog.jobs.list(tenant="acme", subject=None, state=None, limit=1000))[0]
    assert [job.id for job in after] == [job.id for job in before]
    assert [blob.key async for blob in backends.blobs.list("uploads/")] == []


async def test_a_flood_of_one_caller_leaves_room_for_others(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "RECEIVED_AT_ONCE", 8)
    await guarded.issue("ivy", "rival", [Role.USER])
    async with sending(guarded, "eve", BEGUN, over=False), sending(guarded, "eve", BEGUN, over=False):
        await until(guarded, 2)
        async with sending(guarded, "eve", BEGUN, over=False) as third:
            code, said = await ended(third)
            assert (code, "2 of yours, 2 of your tenant, 2 of all" in said) == (
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                True,
            )
        async with guarded.client("alice") as alice, guarded.client("ivy") as colleague:
            for other in (alice, colleague):
                assert (await other.generate("a fox", image=RED, steps=2)).png
            (planned,) = await alice.plan("a fox", image=RED, strength=0.5, steps=2)
            assert planned.job.plan.start_step == 1


async def test_an_image_in_the_only_message_takes_a_place_too(guarded: Guarded) -> None:
    """It was decoded without one: a flood of small files that decode to large images held up everybody's uploads."""
    asked = common_pb2.Request(prompt="a fox", image=RED, steps=2)
    held = receiving(guarded)
    async with guarded.client("alice") as client:
        stub, metadata = client._stub, client._metadata()
        plan = gateway_pb2.PlanRequest(request=asked)
        with contextlib.ExitStack() as flood:
            with contextlib.suppress(OverloadedError):
                while True:
                    flood.enter_context(held.by("acme", "alice"))
            for call in (
                stub.Generate(gateway_pb2.GenerateRequest(request=asked), metadata=metadata),
                stub.GenerateStream(gateway_pb2.GenerateStreamRequest(request=asked), metadata=metadata).read(),
                stub.Plan(plan, metadata=metadata),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call
                assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub.Plan(plan, metadata=metadata)).jobs
    assert held.count == 0


async def test_an_upload_ends_with_its_key(guarded: Guarded) -> None:
    await guarded.issue("leaver", "acme", [Role.USER])
    found = parsed(guarded.keys["leaver"])
    assert found
    async with sending(guarded, "leaver", BEGUN, over=False) as call:
        await until(guarded, 1)
        await guarded.house.backends.catalog.keys.revoke(found[0])
        assert (await ended(call))[0] is grpc.StatusCode.UNAUTHENTICATED
        await until(guarded, 0)
    async with AsyncClient(guarded.address, retry_s=0.0, api_key=guarded.keys["leaver"]) as client:
        with pytest.raises(UnauthenticatedError):
            await client.plan("a fox", image=RED)


async def test_no_subject_and_no_tenant_takes_the_last_place() -> None:
    receiving = uploads.Receiving(1)
    with contextlib.ExitStack() as held:

        def taken(tenant: str, subject: str) -> int:
            """Take all that this caller may, and return how many."""
            for number in range(100):
                try:
                    held.enter_context(receiving.by(tenant, subject))
                except OverloadedError:
                    return number
            return 100

        assert [taken("a", name) for name in ("ann", "ben", "cas")] == [4, 2, 1]
        assert taken("", "") == 5  # anonymous callers are one
        assert taken("b", "dan") == 1
    assert receiving.count == 0
