"""The client against gateways that answer nonsense, and that come and go."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest

from protos import common_pb2, gateway_pb2
from shared.client import MAX_MESSAGE_BYTES, Accepted, AsyncClient, Event, Picture
from shared.client import retry as patience
from shared.domain.errors import (
    ConfigurationError,
    DeadlineError,
    InvalidRequestError,
    OverloadedError,
    UnavailableError,
)
from shared.domain.types import JobState
from shared.runtime import rpc

SERVICE = "afterimage.gateway.v1.GatewayService"
JOB = common_pb2.Job(id="job", state=common_pb2.JOB_STATE_SUCCEEDED)
DONE = gateway_pb2.GenerateResponse(job=JOB, picture=b"png").SerializeToString()
ACCEPTED = gateway_pb2.GenerateStreamResponse(accepted=gateway_pb2.Accepted(job_id="job")).SerializeToString()
RESULT = gateway_pb2.GenerateStreamResponse(
    result=gateway_pb2.GenerateResponse(job=JOB, picture=b"png")
).SerializeToString()
NONSENSE = {"no message": b"\xff\xff\xff\xff", "no job": b""}

Unary = Callable[[bytes, Any], Awaitable[bytes]]
Stream = Callable[[bytes, Any], AsyncIterator[bytes]]


@contextlib.asynccontextmanager
async def gateway(*, unary: Unary | None = None, stream: Stream | None = None) -> AsyncIterator[str]:
    """Answers in bytes; the address."""
    handlers: dict[str, Any] = {}
    if unary is not None:
        for name in ("Generate", "GetJob", "ListJobs", "CancelJob"):
            handlers[name] = grpc.unary_unary_rpc_method_handler(unary)
    if stream is not None:
        handlers["GenerateStream"] = grpc.unary_stream_rpc_method_handler(stream)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(0.0)


@pytest.mark.parametrize("body", NONSENSE.values(), ids=NONSENSE)
async def test_a_reply_that_cannot_be_read_is_an_error_that_says_so(body: bytes) -> None:
    async def answer(request: bytes, context: Any) -> bytes:
        return body

    async def answers(request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield body

    async with gateway(unary=answer, stream=answers) as address, AsyncClient(address, retry_s=5.0) as client:
        calls: list[Awaitable[Any]] = [client.generate("a fox"), client.get_picture("job"), client.cancel("job")]
        for call in (*calls, anext(client.generate_stream("a fox"))):
            with pytest.raises(ConfigurationError, match="another version of it, listens there"):
                await call
        if body:  # a page without jobs is one
            with pytest.raises(ConfigurationError, match="malformed"):
                await client.list_jobs(state=JobState.QUEUED)


class Breaking:
    """A gateway that is there for `there_s`, breaks off, and is away for one try, so many times."""

    def __init__(self, breaks: int, there_s: float) -> None:
        self._left, self._there_s, self.tries = 2 * breaks, there_s, 0

    async def _goes(self, context: Any) -> None:
        self.tries += 1
        self._left -= 1
        if self._left >= 0:
            if self._left % 2:
                await asyncio.sleep(self._there_s)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    async def generate(self, request: bytes, context: Any) -> bytes:
        await self._goes(context)
        return DONE

    async def stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        if self._left % 2 == 0:
            yield ACCEPTED
        await self._goes(context)
        yield RESULT


async def test_every_break_is_waited_for_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "REACHED_S", 0.6)
    monkeypatch.setattr(patience, "FIRST_DELAY_S", 0.05)

    async def asked(kind: str) -> None:
        breaking = Breaking(breaks=4, there_s=1.2)
        async with (
            gateway(unary=breaking.generate, stream=breaking.stream) as address,
            AsyncClient(address, retry_s=3.0) as client,
        ):
            if kind == "generate":
                assert (await client.generate("a fox")).png == b"png"
            else:
                events = [event async for event in client.generate_stream("a fox")]
                assert [type(event) for event in events] == [Accepted, Picture]
        assert breaking.tries == 9

    await asyncio.gather(asked("generate"), asked("stream"))


async def test_one_break_is_waited_for_as_long_as_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_DELAY_S", 0.05)
    tries = 0

    async def away(request: bytes, context: Any) -> bytes:
        nonlocal tries
        tries += 1
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        raise AssertionError

    async with gateway(unary=away) as address, AsyncClient(address, retry_s=0.5) as client:
        begun = asyncio.get_running_loop().time()
        with pytest.raises(UnavailableError):
            await client.generate("a fox")
        assert asyncio.get_running_loop().time() - begun >= 0.5
        assert tries >= 3


@pytest.mark.parametrize("kind", ["generate", "stream"])
async def test_a_picture_that_the_gateway_cannot_give_is_not_asked_for_for_ever(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there, takes the job up again under its key, and says each time that the blob store is away: at once, or
    after longer than a gateway that is away would take."""
    monkeypatch.setattr(patience, "REACHED_S", 0.1)
    monkeypatch.setattr(patience, "FIRST_DELAY_S", 0.05)
    away = rpc.to_status(UnavailableError("the blob store does not answer", retry_after_s=0.05))
    tries = 0

    async def generate(request: bytes, context: Any) -> bytes:
        nonlocal tries
        tries += 1
        await asyncio.sleep(0.2)
        await context.abort(away.code, away.details, away.trailing_metadata)
        raise AssertionError

    async def stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
        nonlocal tries
        tries += 1
        yield ACCEPTED
        await context.abort(away.code, away.details, away.trailing_metadata)

    async with gateway(unary=generate, stream=stream) as address, AsyncClient(address, retry_s=0.5) as client:
        asking = client.generate("a fox") if kind == "generate" else _drained(client.generate_stream("a fox"))
        with pytest.raises(UnavailableError, match="blob store"):
            await asyncio.wait_for(asking, 30)
    assert tries >= 3


@pytest.mark.parametrize("kind", ["generate", "stream"])
async def test_a_picture_is_waited_for_no_longer_than_was_said_however_often_the_gateway_breaks(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "REACHED_S", 0.1)
    monkeypatch.setattr(patience, "FIRST_DELAY_S", 0.05)
    breaking = Breaking(breaks=10_000, there_s=0.3)
    async with (
        gateway(unary=breaking.generate, stream=breaking.stream) as address,
        AsyncClient(address, retry_s=5.0) as client,
    ):
        asking = (
            client.generate("a fox", timeout_s=1.5)
            if kind == "generate"
            else _drained(client.generate_stream("a fox", timeout_s=1.5))
        )
        with pytest.raises(DeadlineError):
            await asyncio.wait_for(asking, 30)
    assert breaking.tries >= 3


@pytest.mark.parametrize("kind", ["generate", "stream"])
async def test_what_the_server_names_no_delay_for_is_asked_once(kind: str) -> None:
    """gRPC's own refusal of a message that is too large; a full queue names a delay, and is asked again."""
    full = rpc.to_status(OverloadedError("256 jobs are waiting", retry_after_s=0.05))
    tries, permanent = 0, False

    async def refuse(context: Any) -> None:
        nonlocal tries
        tries += 1
        if permanent:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max (9 vs. 4)")
        if tries < 3:
            await context.abort(full.code, full.details, full.trailing_metadata)

    async def generate(request: bytes, context: Any) -> bytes:
        await refuse(context)
        return DONE

    async def stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
        await refuse(context)
        yield RESULT

    def asking(client: AsyncClient) -> Awaitable[Any]:
        return client.generate("a fox") if kind == "generate" else _drained(client.generate_stream("a fox"))

    async with gateway(unary=generate, stream=stream) as address, AsyncClient(address, retry_s=20.0) as client:
        await asking(client)
        assert tries == 3
        tries, permanent = 0, True
        with pytest.raises(OverloadedError, match=r"\(9 vs. 4\): a message holds max_message_bytes at most"):
            await asking(client)
        assert tries == 1


async def test_a_message_that_is_too_large_is_sent_once_and_the_setting_is_named() -> None:
    async with gateway() as address, AsyncClient(address, retry_s=20.0) as client:
        with pytest.raises(OverloadedError, match="AFTERIMAGE_MAX_MESSAGE_BYTES"):
            await asyncio.wait_for(client.generate("a fox" * (MAX_MESSAGE_BYTES // 4)), 10.0)


async def test_an_address_without_a_port_is_refused_before_anything_is_called() -> None:
    with pytest.raises(InvalidRequestError, match=r"target: must name a port too, as in localhost:50051"):
        AsyncClient("localhost")


async def test_why_nobody_is_reached_is_said_and_a_port_of_another_protocol_is_asked_once() -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with AsyncClient("nohost.invalid:50051", retry_s=0.1) as client:
        with pytest.raises(
            UnavailableError, match=r"^nohost\.invalid:50051: the host 'nohost\.invalid' has no address"
        ):
            await client.generate("a fox")
    async with AsyncClient("127.0.0.1:1", retry_s=0.1) as client:
        with pytest.raises(UnavailableError, match=r"^nothing listens on 127\.0\.0\.1:1$"):
            await _drained(client.generate_stream("a fox"))
    web = await asyncio.start_server(page, "127.0.0.1", 0)
    address = f"127.0.0.1:{web.sockets[0].getsockname()[1]}"
    async with web, AsyncClient(address, retry_s=60.0) as client:
        for asking in (client.generate("a fox"), _drained(client.generate_stream("a fox"))):
            with pytest.raises(ConfigurationError, match=f"^{address}: a server that is not Afterimage listens there"):
                await asyncio.wait_for(asking, 20.0)


async def test_a_port_that_takes_connections_and_is_silent_costs_the_time_to_retry_and_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        said = list[str]()
        async with AsyncClient(address, retry_s=1.0) as client:
            begun = asyncio.get_running_loop().time()
            with pytest.raises(UnavailableError, match=f"^{address}: takes connections and has not answered within"):
                await client.generate("a fox", on_wait=lambda waiting: said.append(str(waiting.error)))
            assert asyncio.get_running_loop().time() - begun < 15.0
        assert said
        assert all(line.startswith(f"{address}: takes connections") for line in said)


async def _drained(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]
