"""Several replicas behind one channel: asked in turn, the sick and the dead left out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from protos import embedder_pb2 as pb
from protos import embedder_pb2_grpc as pb_grpc
from shared.domain.errors import AfterimageError, ConfigurationError, InvalidRequestError, UnavailableError
from shared.runtime import rpc
from shared.runtime.addresses import (
    NothingListensError,
    check_address,
    check_target,
    from_here,
    target_of,
    unreachable,
)
from shared.runtime.settings import Settings
from shared.service import Context
from shared.service.backends import open_backends


def test_one_address_is_a_target_as_it_is() -> None:
    for target in ("embedder:50051", "127.0.0.1:7000", "dns:///embedder:50051", "unix:/tmp/a.sock"):
        assert target_of(target, "embedder_address") == target


def test_several_addresses() -> None:
    assert target_of("127.0.0.1:7000, 127.0.0.2:7000", "x") == "ipv4:127.0.0.1:7000,127.0.0.2:7000"
    assert target_of("[::1]:7000,[::2]:7000", "x") == "ipv6:[::1]:7000,[::2]:7000"


@pytest.mark.parametrize("wrong", ["a:1,b:2", "127.0.0.1:1,[::1]:1", "127.0.0.1,127.0.0.2:1"])
def test_several_addresses_that_grpc_could_not_use_name_the_setting(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match="embedder_address"):
        target_of(wrong, "embedder_address")


class Replica(pb_grpc.EmbedderServiceServicer):
    """Says its own name; can be told that it is not well."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._health = health.aio.HealthServicer()

    async def EmbedText(self, request: pb.EmbedTextRequest, context: Any) -> pb.EmbedTextResponse:  # noqa: N802 — gRPC names it
        return pb.EmbedTextResponse(encoder_hash=self._name)

    async def well(self, yes: bool) -> None:
        states = health_pb2.HealthCheckResponse
        await self._health.set("", states.SERVING if yes else states.NOT_SERVING)

    async def start(self) -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server()
        pb_grpc.add_EmbedderServiceServicer_to_server(self, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        await self.well(True)
        return server, port


@asynccontextmanager
async def replicas(*names: str) -> AsyncIterator[tuple[list[Replica], list[grpc.aio.Server], str]]:
    async with AsyncExitStack() as stack:
        made = [Replica(name) for name in names]
        servers, addresses = [], []
        for replica in made:
            server, port = await replica.start()
            stack.push_async_callback(server.stop, 0.0)
            servers.append(server)
            addresses.append(f"127.0.0.1:{port}")
        yield made, servers, ",".join(addresses)


async def _asked(context: Context, times: int = 10) -> Counter[str]:
    stub: Any = pb_grpc.EmbedderServiceStub(context.channel("embedder"))
    request = pb.EmbedTextRequest(texts=["a red fox"])
    return Counter([(await rpc.call(stub.EmbedText, request, timeout_s=5.0)).encoder_hash for _ in range(times)])


@asynccontextmanager
async def caller(settings: Settings, addresses: str) -> AsyncIterator[Context]:
    changed = settings.model_copy(update={"embedder_address": addresses})
    backends = await open_backends(changed)
    context = Context(changed, backends)
    yield context
    await context.close()
    await backends.close()


async def test_replicas_are_asked_in_turn_and_one_that_drains_is_left_out(settings: Settings) -> None:
    async with replicas("a", "b") as (made, _, addresses), caller(settings, addresses) as context:
        await _asked(context, 4)  # until both are connected
        assert set(await _asked(context)) == {"a", "b"}
        await made[0].well(False)
        await _asked(context, 4)  # the news is on its way
        assert set(await _asked(context)) == {"b"}
        await made[0].well(True)
        await _asked(context, 4)
        assert set(await _asked(context)) == {"a", "b"}


async def test_no_call_is_lost_with_a_replica_that_dies(settings: Settings) -> None:
    async with replicas("a", "b") as (_, servers, addresses), caller(settings, addresses) as context:
        await _asked(context, 4)
        await servers[0].stop(0.0)
        assert await _asked(context) == {"b": 10}


async def test_a_process_that_cannot_know_where_a_service_is_names_the_setting(settings: Settings) -> None:
    async with caller(settings, "") as context:
        with pytest.raises(ConfigurationError, match=r"embedder_address.*AFTERIMAGE_EMBEDDER_ADDRESS"):
            context.channel("embedder")


async def test_a_server_that_is_away_is_waited_for_so_long_and_no_longer(tmp_path: Path) -> None:
    pytest.importorskip("asyncpg")
    settings = Settings(
        data_dir=tmp_path,
        bus_url="amqp://127.0.0.1:9",
        catalog_url="postgresql+asyncpg://nobody@127.0.0.1:9/none",
        connect_wait_s=0.2,
    )
    with pytest.raises(UnavailableError, match="postgresql"):
        await open_backends(settings)


async def test_a_service_alone_opens_only_the_ports_it_uses(tmp_path: Path) -> None:
    nowhere = Settings(
        data_dir=tmp_path,
        bus_url="amqp://127.0.0.1:9",
        index_url="weaviate://127.0.0.1:9",
        catalog_url="postgresql+asyncpg://nobody@127.0.0.1:9/none",
        blobs_url=f"file:{tmp_path}/blobs",
        connect_wait_s=0.0,
    )
    backends = await open_backends(nowhere, {"blobs"})
    await backends.blobs.put("pictures/a.png", b"a picture")
    with pytest.raises(ConfigurationError, match="catalog: this process did not open it"):
        _ = backends.catalog.jobs
    await backends.close()


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", ":50051", "127.0.0.1:http", "127.0.0.1:65536", "unix:"])
def test_what_nobody_can_listen_on_is_refused_with_the_rule(address: str) -> None:
    with pytest.raises(ConfigurationError, match="listen: must be host:port"):
        check_address(address, "listen")


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:50051", "localhost:50051", "unix:/tmp/a.sock"])
def test_what_can_be_listened_on_is_not(address: str) -> None:
    check_address(address, "listen")


@pytest.mark.parametrize(
    "target", ["h:1", "127.0.0.1:50051", "[::1]:7000", "unix:/tmp/a.sock", "dns:///embedder:50051"]
)
def test_a_target_that_grpc_can_call(target: str) -> None:
    assert check_target(target) == target


@pytest.mark.parametrize(
    ("target", "rule"),
    [
        ("localhost", r"target: must name a port too, as in localhost:50051 \(got 'localhost'\)"),
        ("http://localhost:50051", r"target: must be host:port, .* \(got 'http://localhost:50051'\)"),
        ("::1:50051", r"must be host:port, as in .* \[::1\]:50051"),
        ("localhost:grpc", "must be host:port"),
        ("localhost:0", "must be host:port"),
        ("localhost:70000", "must be host:port"),
        (":50051", "must be host:port"),
        ("", "must be host:port"),
    ],
)
def test_a_target_that_is_no_address_is_refused_with_the_rule(target: str, rule: str) -> None:
    with pytest.raises(InvalidRequestError, match=rule):
        check_target(target)


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """A server that sends these bytes, whatever it reads, and closes the connection."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(reply, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _why(address: str) -> AfterimageError:
    why = await unreachable(address)
    assert why is not None
    return why


async def test_three_reasons_why_nobody_is_reached_are_three_messages() -> None:
    unknown = await _why("nohost.invalid:50051")
    assert (type(unknown), "the host 'nohost.invalid' has no address" in str(unknown)) == (UnavailableError, True)
    for host in ("no..host", "h" * 70):
        impossible = await _why(f"{host}:50051")
        assert (type(impossible), str(impossible)) == (
            UnavailableError, f"{host}:50051: the host {host!r} has no address (not a host name); check its name"
        )  # fmt: skip
    nothing = await _why("127.0.0.1:1")
    assert (type(nothing), str(nothing)) == (NothingListensError, "nothing listens on 127.0.0.1:1")
    for answer in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", b"\x15\x03\x01\x00\x02\x02\x46"):
        async with answering(answer) as address:
            other = await _why(address)
        assert isinstance(other, ConfigurationError)
        assert f"{address}: a server that is not Afterimage listens there" in str(other)
        assert repr(answer[:9]) in str(other)
    assert all("\n" not in str(why) for why in (unknown, nothing, other))


async def test_what_speaks_http_2_what_ends_and_what_starts_is_called() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    assert await unreachable(f"127.0.0.1:{port}") is None  # bound, and silent
    await server.start()
    assert await unreachable(f"127.0.0.1:{port}") is None
    await server.stop(0)
    async with answering(b"") as address:
        assert await unreachable(address) is None
    assert await unreachable("dns:///embedder:50051") is None


@pytest.mark.parametrize(
    ("listening", "called"),
    [
        ("0.0.0.0:50051", "127.0.0.1:50051"),
        ("https://[::]:8000", "https://[::1]:8000"),
        ("10.0.0.0:50051", "10.0.0.0:50051"),
        ("unix:/run/a", "unix:/run/a"),
        ("", ""),
    ],
)
def test_clients_of_this_machine_call_no_wildcard(listening: str, called: str) -> None:
    assert from_here(listening) == called
