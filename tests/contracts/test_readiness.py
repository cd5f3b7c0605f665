"""A gateway whose catalog or broker is away: it lives, says that it is not ready, and lets nobody wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import sqlalchemy as sa
from grpc_health.v1 import health_pb2, health_pb2_grpc
from yarl import URL

from services.gateway.service import GatewayService
from shared.client import AsyncClient
from shared.domain.errors import UnavailableError
from shared.runtime.settings import Settings
from shared.service import readiness, running
from tests.contracts.servers import url_of
from tests.wire import Wire

pytestmark = pytest.mark.parametrize("catalog_url", ["postgresql"], indirect=True)

GATEWAY = "afterimage.gateway.v1.GatewayService"
NOBODY = "127.0.0.1:9"
LIMIT_S = 0.5
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@dataclass
class Alone:
    """A gateway over relays to its servers, and nobody else."""

    address: str
    catalog: Wire
    bus: Wire
    health: Any

    async def says(self, service: str) -> int:
        return int((await self.health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)).status)

    async def until(self, status: int) -> None:
        async with asyncio.timeout(20):
            while await self.says(GATEWAY) != status:
                await asyncio.sleep(0.05)


@pytest.fixture
async def alone(catalog_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Alone]:
    monkeypatch.setattr(readiness, "EVERY_S", 0.1)
    monkeypatch.setattr(readiness, "ANSWER_S", 0.5)
    at, broker = sa.make_url(catalog_url), URL(url_of("rabbitmq"))
    assert at.port
    wires = Wire(at.port), Wire(broker.port or 5672)
    ports = [await wire.start() for wire in wires]
    settings = Settings(
        data_dir=tmp_path,
        listen="127.0.0.1:0",
        metrics_listen="",
        large="noop:",
        catalog_url=at.set(host="127.0.0.1", port=ports[0]).render_as_string(hide_password=False),
        bus_url=str(broker.with_host("127.0.0.1").with_port(ports[1])),
        blobs_url=f"file:{tmp_path / 'blobs'}",
        embedder_address=NOBODY,
        match_predictor_address=NOBODY,
        retriever_address=NOBODY,
        catalog_timeout_s=LIMIT_S,
    )
    async with (
        running([GatewayService()], settings) as process,
        grpc.aio.insecure_channel(process.address) as channel,
    ):
        yield Alone(process.address, *wires, health_pb2_grpc.HealthStub(channel))
        for wire in wires:
            await wire.close()


async def test_without_its_catalog_it_answers_soon_and_is_not_ready_until_that_is_back(alone: Alone) -> None:
    await alone.until(SERVING)  # on a busy machine a ping may take longer than these may
    assert await alone.says("") == SERVING
    alone.catalog.cut = True
    async with AsyncClient(alone.address, retry_s=0.0) as client:
        start = time.monotonic()
        with pytest.raises(UnavailableError, match=r"catalog did not answer within 0\.5 s"):
            await client.get_job("any")
        assert time.monotonic() - start < LIMIT_S + 4.0  # hanging up takes a while as well
    await alone.until(NOT_SERVING)
    assert await alone.says("") == SERVING  # nothing is mended by starting it anew
    alone.catalog.cut = False
    await alone.until(SERVING)


async def test_without_its_broker_it_is_not_ready(alone: Alone) -> None:
    await alone.bus.close()
    await alone.until(NOT_SERVING)
    assert await alone.says("") == SERVING
