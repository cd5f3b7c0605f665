"""What one question without an answer, several, or an error of another kind say about a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from grpc_health.v1 import health_pb2

from shared.domain.errors import UnavailableError
from shared.service import readiness
from shared.service.health import Health

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Server:
    """A catalog that answers, or raises, as it is told; `asked` is set with each question."""

    process_local = False

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Exception | None] = asyncio.Queue()
        self.idle = asyncio.Event()

    async def ping(self) -> None:
        if self.answers.empty():
            self.idle.set()
        if (error := await self.answers.get()) is not None:
            raise error

    async def answered(self, *answers: Exception | None) -> None:
        """Until these were given and what they mean was told."""
        self.idle.clear()
        for answer in answers:
            self.answers.put_nowait(answer)
        await asyncio.wait_for(self.idle.wait(), 5)


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def health(server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Health]:
    monkeypatch.setattr(readiness, "EVERY_S", 0.0)
    monkeypatch.setattr(readiness, "ANSWER_S", 60.0)
    servicer = Health()
    await servicer.set("gateway", SERVING)
    backends: Any = SimpleNamespace(catalog=server)
    asking = asyncio.create_task(readiness.Readiness(backends, servicer, {"gateway": frozenset({"catalog"})}).run())
    yield servicer
    asking.cancel()
    await asyncio.wait([asking])


async def _says(health: Health) -> int:
    return int((await health.Check(health_pb2.HealthCheckRequest(service="gateway"), None)).status)


@pytest.mark.parametrize("error", [UnavailableError("away"), TimeoutError(), ZeroDivisionError("a bug")])
async def test_a_server_is_away_after_two_misses_in_a_row_and_back_after_one_answer(
    server: Server, health: Health, error: Exception
) -> None:
    await server.answered(error, None, error)  # holds still
    assert await _says(health) == SERVING
    await server.answered(error)
    assert await _says(health) == NOT_SERVING
    await server.answered(None)
    assert await _says(health) == SERVING
