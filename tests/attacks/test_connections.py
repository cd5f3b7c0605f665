"""Connections meant to hurt: compressed messages that grow, pings without end, silence, refused calls, and too many."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from protos import common_pb2, gateway_pb2, gateway_pb2_grpc
from shared.runtime import addresses, rpc_server
from shared.runtime.settings import Settings
from tests.attacks.conftest import Guarded
from tests.flows.house import house

pytestmark = pytest.mark.asyncio(loop_scope="session")

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
UNKNOWN = health_pb2.HealthCheckRequest(service="made up").SerializeToString()
PING = struct.pack(">I", 8)[1:] + b"\x06\x00\x00\x00\x00\x00" + bytes(8)


async def opened(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def closes(reader: asyncio.StreamReader, within_s: float) -> bool:
    with contextlib.suppress(ConnectionError):
        try:
            async with asyncio.timeout(within_s):
                while await reader.read(2**16):
                    pass
        except TimeoutError:
            return False
    return True


async def code_of(channel: grpc.aio.Channel, method: Any, message: bytes, key: str) -> str:
    """Call a method with this message, which is wrong, and return the status code."""
    shape = "_".join("stream" if one else "unary" for one in (method.client_streaming, method.server_streaming))
    make = getattr(channel, shape)(f"/{method.containing_service.full_name}/{method.name}")
    sent = iter([message]) if method.client_streaming else message
    call: Any = make(sent, metadata=(("authorization", f"Bearer {key}"),) if key else None, timeout=10.0)
    return str((await call.code()).name)


async def serves(address: str, key: str) -> bool:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        asked = gateway_pb2.ListJobsRequest()
        await stub.ListJobs(asked, metadata=(("authorization", f"Bearer {key}"),), timeout=10.0)
    return True


@contextlib.asynccontextmanager
async def small(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The address of a server that bears three connections, and half a second of silence."""
    monkeypatch.setattr(rpc_server, "HANDSHAKE_S", 0.5)
    monkeypatch.setattr(addresses, "MOST_CONNECTIONS", 3)
    server = rpc_server.server(rpc_server.server_options())
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(0)


async def test_a_compressed_message_is_refused_before_it_grows(guarded: Guarded) -> None:
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(guarded.address, options=options) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        bomb = gateway_pb2.GenerateRequest(request=common_pb2.Request(prompt="a" * 2**26))
        key = (("authorization", f"Bearer {guarded.keys['alice']}"),)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Generate(bomb, metadata=key, compression=grpc.Compression.Gzip, timeout=30.0)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "'gzip' is disabled" in str(caught.value.details())
    assert await serves(guarded.address, guarded.keys["alice"])


async def test_pings_without_end_close_their_connection_alone(guarded: Guarded) -> None:
    reader, writer = await opened(guarded.address)
    with contextlib.suppress(ConnectionError):
        writer.write(PREFACE + PING * 100)
        await writer.drain()
    assert await closes(reader, 10.0)
    writer.close()
    assert await serves(guarded.address, guarded.keys["alice"])


async def test_a_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with small(monkeypatch) as address:
        reader, writer = await opened(address)
        assert await closes(reader, 10.0)
        writer.close()


async def test_a_connection_without_calls_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_server, "IDLE_S", 1.0)
    async with small(monkeypatch) as address:
        reader, writer = await opened(address)
        writer.write(PREFACE)
        assert await closes(reader, 10.0)
        writer.close()


async def test_connections_above_the_limit_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with small(monkeypatch) as address:
        held = [await opened(address) for _ in range(12)]
        found = await asyncio.gather(*(closes(reader, 0.3) for reader, _ in held))
        assert sum(found) >= 12 - 3
        for _, writer in held:
            writer.close()


async def test_refused_calls_leave_no_stream_open(
    settings: Settings, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused call was an open stream until Python's garbage collection: after 15,000 of them, their connection was
    refused every further call."""
    monkeypatch.setattr(rpc_server, "MOST_STREAMS", 8)
    own = settings.model_copy(update={"large": "noop:", "encoder": str(tiny / "clip")})
    gateway = gateway_pb2.DESCRIPTOR.services_by_name["GatewayService"]
    check = health_pb2.DESCRIPTOR.services_by_name["Health"].methods_by_name["Check"]
    async with house(own) as here, grpc.aio.insecure_channel(here.process.address) as channel:
        gc.disable()
        try:
            for method in (*gateway.methods, check):
                wrong = ((UNKNOWN, ""),) if method is check else ((b"\xff", ""), (b"", "aik_wrong"))
                for message, key in wrong:
                    codes = {await code_of(channel, method, message, key) for _ in range(20)}
                    assert codes <= {"INVALID_ARGUMENT", "UNAUTHENTICATED", "NOT_FOUND"}, method.name
        finally:
            gc.enable()
