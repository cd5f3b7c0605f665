"""Health is open to strangers: they hold it open without end, and send what no probe sends."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.cache_maintainer.service import CacheMaintainerService
from shared.runtime.settings import Settings
from shared.service import health, running
from tests.attacks.conftest import Guarded
from tests.attacks.test_open_doors import Nothing

REFLECTED = "reflection.v1alpha.ServerReflection/ServerReflectionInfo"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def test_strangers_watch_health_up_to_a_bound(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand calls on each connection stayed open for ever. A name without a service took memory for ever."""
    monkeypatch.setattr(health, "MOST_WATCHES", 3)
    async with running([Nothing()], settings) as process, grpc.aio.insecure_channel(process.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        held = [stub.Watch(health_pb2.HealthCheckRequest(service=f"made up {number}")) for number in range(3)]
        for call in held:
            assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        with pytest.raises(grpc.aio.AioRpcError, match="use Check") as refused:
            await stub.Watch(health_pb2.HealthCheckRequest()).read()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == SERVING
        held[0].cancel()
        async with asyncio.timeout(5.0):
            while not await _watched(stub):
                await asyncio.sleep(0.02)


async def test_a_watcher_that_leaves_takes_no_news_from_the_others() -> None:
    """The first watcher of a name to leave took the others' row with it: they were never told again."""
    servicer, server = health.Health(), grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel, asyncio.timeout(5.0):
        stub: Any = health_pb2_grpc.HealthStub(channel)
        leaving, staying = (stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(2))
        for call in (leaving, staying):
            assert (await call.read()).status == SERVING
        leaving.cancel()
        while servicer.watches > 1:
            await asyncio.sleep(0.01)
        await servicer.set("", NOT_SERVING)
        assert (await staying.read()).status == NOT_SERVING
    await server.stop(0)


@pytest.mark.asyncio(loop_scope="session")
async def test_a_request_has_no_room_for_an_image(guarded: Guarded, settings: Settings) -> None:
    """64 MiB of a service's name were received from whoever sent them."""
    async with running([CacheMaintainerService()], settings) as maintainer:
        for address in (guarded.address, maintainer.address):
            async with grpc.aio.insecure_channel(address) as channel:
                check = channel.unary_unary("/grpc.health.v1.Health/Check")
                with pytest.raises(grpc.aio.AioRpcError, match="larger than max"):
                    await check(bytes(2**18), timeout=5.0)


@pytest.mark.parametrize("path", ["health.v1.Health/Check", "health.v1.Health/Watch", REFLECTED])
async def test_malformed_probes_are_refused_in_words(settings: Settings, path: str) -> None:
    """Each was an UNKNOWN, with a traceback in the log."""
    async with running([Nothing()], settings) as process, grpc.aio.insecure_channel(process.address) as channel:
        if path == REFLECTED:
            read = channel.stream_stream(f"/grpc.{path}")(iter([b"\x00"])).read
        elif path.endswith("Watch"):
            read = channel.unary_stream(f"/grpc.{path}")(b"\x00").read
        else:
            check = channel.unary_unary(f"/grpc.{path}")
            read = lambda: check(b"\x00")  # noqa: E731
        with pytest.raises(grpc.aio.AioRpcError, match="wire format") as refused:
            await read()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def _watched(stub: Any) -> bool:
    call = stub.Watch(health_pb2.HealthCheckRequest())
    try:
        return (await call.read()).status == SERVING
    except grpc.aio.AioRpcError:
        return False
    finally:
        call.cancel()
