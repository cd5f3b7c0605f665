"""One server for all tests of the HTTP API, on a free port, with clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from shared.runtime.settings import Settings
from tests.flows.conftest import tiny
from tests.flows.house import House, house

__all__ = ["tiny"]

SMALL: dict[str, Any] = {"size": "16x16"}


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def served(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> AsyncIterator[House]:
    given: dict[str, Any] = {"large": str(tiny / "large"), "small": "noop:?step_ms=20", "encoder": str(tiny / "clip")}
    given |= {"data_dir": tmp_path_factory.mktemp("http"), "listen": "127.0.0.1:0", "metrics_listen": ""}
    given |= {"video": "noop:?name=clips&step_ms=20"}
    async with house(Settings(**given, http_listen="127.0.0.1:0", torch_threads=1)) as it:
        yield it


@pytest_asyncio.fixture(loop_scope="session")
async def http(served: House) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=served.process.http_address, timeout=20.0) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def sdk(served: House) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's own client, with the key of another service, as programs of its users have it."""
    base = f"{served.process.http_address}/v1"
    async with openai.AsyncOpenAI(base_url=base, api_key="sk-elsewhere", max_retries=0) as client:
        yield client
