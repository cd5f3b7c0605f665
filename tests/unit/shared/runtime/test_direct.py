"""A call within the process differs from one over a socket by its time alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import grpc
import pytest

from protos import retriever_pb2 as pb
from protos import retriever_pb2_grpc
from shared.domain.errors import (
    AfterimageError,
    ConfigurationError,
    DeadlineError,
    OverloadedError,
    UnavailableError,
)
from shared.runtime import rpc, rpc_server
from shared.runtime.direct import DirectChannel

CALLER = ContextVar("caller", default="nobody")


class Retriever(retriever_pb2_grpc.RetrieverServiceServicer):
    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.wait, self.cancelled, self.stubborn_s, self.times = asyncio.Event(), asyncio.Event(), 0.0, 1
        self.wait.set()

    async def Plan(self, request: pb.PlanRequest, context: Any) -> pb.PlanResponse:  # noqa: N802
        self.seen.append((CALLER.get(), dict(context.invocation_metadata() or ()), context.peer()))
        CALLER.set("the handler")
        request.request.prompt += ", changed by the handler"
        try:
            await self.wait.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            await asyncio.sleep(self.stubborn_s)
            raise
        if request.request.prompt.startswith("nothing"):
            return None  # type: ignore[return-value]
        return pb.PlanResponse(plan={"reason": request.request.prompt * self.times})


@pytest.fixture
async def socket_channel() -> AsyncIterator[tuple[Any, Any, Retriever]]:
    """Yield a server that is not yet started, a channel to its socket, and its servicer."""
    server: Any = rpc_server.server()
    servicer = Retriever()
    retriever_pb2_grpc.add_RetrieverServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield server, channel, servicer
    await server.stop(None)


@pytest.fixture
async def direct(socket_channel: tuple[Any, Any, Retriever]) -> tuple[Any, Retriever]:
    server, channel, servicer = socket_channel
    await server.start()
    return retriever_pb2_grpc.RetrieverServiceStub(DirectChannel(channel, server, 1000)), servicer


def asking(prompt: str) -> pb.PlanRequest:
    message = pb.PlanRequest()
    message.request.prompt = prompt
    return message


async def test_the_handler_gets_a_copy_in_a_context_of_its_own(direct: tuple[Any, Retriever]) -> None:
    stub, servicer = direct
    CALLER.set("the caller")
    message = asking("a fox")
    reply = await rpc.call(stub.Plan, message, timeout_s=5, metadata=(("traceparent", "00-1-2-01"),))
    assert reply.plan.reason == "a fox, changed by the handler"
    assert message == asking("a fox")
    assert CALLER.get() == "the caller"
    assert servicer.seen == [("nobody", {"traceparent": "00-1-2-01"}, "unix:")]


async def test_a_call_ends_at_its_time_though_the_handler_does_not(direct: tuple[Any, Retriever]) -> None:
    stub, servicer = direct
    servicer.wait.clear()
    servicer.stubborn_s = 60.0
    async with asyncio.timeout(30):
        with pytest.raises(DeadlineError):
            await rpc.call(stub.Plan, asking("a fox"), timeout_s=0.01)
        await servicer.cancelled.wait()


async def test_a_caller_that_leaves_ends_the_handler(direct: tuple[Any, Retriever]) -> None:
    stub, servicer = direct
    servicer.wait.clear()
    call = asyncio.create_task(rpc.call(stub.Plan, asking("a fox"), timeout_s=60))
    while not servicer.seen:
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    async with asyncio.timeout(30):
        await servicer.cancelled.wait()


async def test_a_stop_gives_calls_their_grace_and_then_ends_them(
    socket_channel: tuple[Any, Any, Retriever], direct: tuple[Any, Retriever]
) -> None:
    server, (stub, servicer) = socket_channel[0], direct
    servicer.wait.clear()
    calls = [asyncio.create_task(rpc.call(stub.Plan, asking("a fox"), timeout_s=60)) for _ in range(2)]
    while len(servicer.seen) < 2:
        await asyncio.sleep(0)
    stopping = asyncio.create_task(server.stop(30.0))
    await asyncio.sleep(0.01)
    assert not stopping.done()
    servicer.wait.set()
    assert [reply.plan.reason for reply in await asyncio.gather(*calls)] == ["a fox, changed by the handler"] * 2
    await stopping
    assert not server.direct


async def test_a_stop_without_grace_ends_the_calls(
    socket_channel: tuple[Any, Any, Retriever], direct: tuple[Any, Retriever]
) -> None:
    server, (stub, servicer) = socket_channel[0], direct
    servicer.wait.clear()
    call = asyncio.create_task(rpc.call(stub.Plan, asking("a fox"), timeout_s=60))
    while not servicer.seen:
        await asyncio.sleep(0)
    await server.stop(None)
    assert servicer.cancelled.is_set()
    with pytest.raises(UnavailableError):
        await call


async def test_a_reply_that_cannot_be_sent_is_an_error_of_the_call(direct: tuple[Any, Retriever]) -> None:
    with pytest.raises(AfterimageError, match="the reply cannot be sent"):
        await rpc.call(direct[0].Plan, asking("nothing"), timeout_s=5)


async def test_a_message_above_the_limit_names_the_limit(direct: tuple[Any, Retriever]) -> None:
    stub, servicer = direct
    with pytest.raises(OverloadedError, match=r"larger than max .* vs. 1000.*max_message_bytes"):
        await rpc.call(stub.Plan, asking("a fox" * 200), timeout_s=5)
    assert not servicer.seen
    servicer.times = 50
    with pytest.raises(OverloadedError, match=r"larger than max .* vs. 1000.*max_message_bytes"):
        await rpc.call(stub.Plan, asking("a fox"), timeout_s=5)


async def test_a_reply_that_is_no_message_of_the_method_says_so(
    socket_channel: tuple[Any, Any, Retriever], direct: tuple[Any, Retriever]
) -> None:
    def as_text(data: bytes) -> pb.PlanResponse:
        return pb.PlanResponse.FromString(data + b"\xff")

    method = "/afterimage.retriever.v1.RetrieverService/Plan"
    call = DirectChannel(socket_channel[1], socket_channel[0], 1000).unary_unary(
        method, pb.PlanRequest.SerializeToString, as_text
    )
    with pytest.raises(AfterimageError, match="no message of this method"):
        await rpc.call(call, asking("a fox"), timeout_s=5)


async def test_before_the_start_and_after_the_stop_the_service_does_not_answer(
    socket_channel: tuple[Any, Any, Retriever],
) -> None:
    server, channel, servicer = socket_channel
    stub: Any = retriever_pb2_grpc.RetrieverServiceStub(DirectChannel(channel, server, 1000))
    with pytest.raises(DeadlineError):  # the port is open, and nobody answers
        await rpc.call(stub.Plan, asking("a fox"), timeout_s=0.1)
    await server.start()
    assert server.handler("/afterimage.retriever.v1.RetrieverService/Plan") is not None
    await server.stop(None)
    with pytest.raises(UnavailableError):
        await rpc.call(stub.Plan, asking("a fox"), timeout_s=5)
    assert not servicer.seen


async def test_a_method_that_nobody_has_says_who_may_listen_there(socket_channel: tuple[Any, Any, Retriever]) -> None:
    server, channel, _ = socket_channel
    await server.start()
    direct = DirectChannel(channel, server, 1000)
    unknown = direct.unary_unary("/afterimage.Nobody/Nothing", pb.PlanRequest.SerializeToString, bytes)
    with pytest.raises(ConfigurationError, match="another service, or another version of it"):
        await rpc.call(unknown, pb.PlanRequest(), timeout_s=5)
