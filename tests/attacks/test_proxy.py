"""HAProxy with compose/haproxy.cfg: one address that takes too much loses its connections, and nobody else does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from scripts.stack.servers import free_port
from shared.client import AsyncClient
from shared.domain.errors import UnauthenticatedError, UnavailableError
from tests.attacks.conftest import Guarded, made_certificate
from tests.contracts.servers import REQUIRED

pytestmark = pytest.mark.asyncio(loop_scope="session")

CONFIG = Path(__file__).parents[2] / "compose/haproxy.cfg"
GREEDY = "127.0.0.9"


@dataclass
class Door:
    port: int
    certificate: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def opened(self, source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection from this address, with TLS."""
        trusted = ssl.create_default_context(cafile=str(self.certificate))
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(source, 0), ssl=trusted)

    async def statuses(self, source: str, count: int) -> Counter[bytes]:
        """Ask for the health that often on one connection, and return how often each status came."""
        reader, writer = await self.opened(source)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * count)
        found = Counter[bytes]()
        async with asyncio.timeout(20.0):
            while found.total() < count and (line := await reader.readline()):
                if status := line.partition(b"HTTP/1.1 ")[2]:  # a body ends without a line break
                    found[status.split()[0]] += 1
        writer.transport.abort()
        return found


@contextlib.asynccontextmanager
async def door(guarded: Guarded, folder: Path, *changes: tuple[str, str]) -> AsyncIterator[Door]:
    """HAProxy before the server, with a second of patience for headers. changes: parts of its file, and their
    replacements."""
    program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        (pytest.fail if "haproxy" in REQUIRED else pytest.skip)("no haproxy: apt-get install haproxy")
    if shutil.which("openssl") is None:
        pytest.skip("no openssl, which makes the certificate")
    pem, key = made_certificate(folder, "door")
    (folder / "both.pem").write_text(pem.read_text() + key.read_text())
    config = CONFIG.read_text()
    for shipped, here in (("http-request 5s", "http-request 1s"), *changes):
        assert shipped in config
        config = config.replace(shipped, here)
    (folder / "haproxy.cfg").write_text(config)
    port = free_port()
    given = {"DOOR": f"127.0.0.1:{port}", "TLS_PEM": str(folder / "both.pem"), "GATEWAY_GRPC": guarded.address}
    given["GATEWAY_HTTP"] = str(guarded.house.process.http_address).removeprefix("http://")
    running = await asyncio.create_subprocess_exec(
        program, "-db", "-f", str(folder / "haproxy.cfg"), env={**os.environ, **given}
    )
    try:
        async with asyncio.timeout(10.0):
            while True:
                assert running.returncode is None
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                await asyncio.sleep(0.02)
        yield Door(port, pem)
    finally:
        if running.returncode is None:
            running.terminate()
        await running.wait()


async def test_one_door_serves_grpc_and_http_and_asks_for_keys(guarded: Guarded, tmp_path: Path) -> None:
    async with door(guarded, tmp_path) as one:
        ca = str(one.certificate)
        async with AsyncClient(one.address, api_key=guarded.keys["alice"], tls_ca=ca, retry_s=0.0) as client:
            picture = await client.generate("a fox behind a proxy", steps=2)
            jobs, _ = await client.list_jobs()
            assert picture.job.id in [one.job.id for one in jobs]
        async with AsyncClient(one.address, api_key="aik_none", tls_ca=ca, retry_s=0.0) as stranger:
            with pytest.raises(UnauthenticatedError):
                await stranger.list_jobs()
        async with httpx.AsyncClient(
            base_url=f"https://{one.address}", verify=ssl.create_default_context(cafile=ca)
        ) as web:
            assert (await web.get("/health")).status_code == 200
            assert (await web.get("/v1/models")).status_code == 401


async def test_one_greedy_address_is_refused_and_others_are_served(guarded: Guarded, tmp_path: Path) -> None:
    async with door(guarded, tmp_path) as one:
        held = await asyncio.gather(*(one.opened(GREEDY) for _ in range(20)))
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await one.opened(GREEDY)
        async with AsyncClient(
            one.address, api_key=guarded.keys["alice"], tls_ca=str(one.certificate), retry_s=0.0
        ) as client:
            await client.list_jobs()
        for _, writer in held:
            writer.close()


async def test_one_address_that_asks_too_often_is_refused_and_others_are_served(
    guarded: Guarded, tmp_path: Path
) -> None:
    async with door(guarded, tmp_path, ("http_req_rate gt 1000", "http_req_rate gt 50")) as one:
        assert (await one.statuses(GREEDY, 60)) == Counter({b"200": 50, b"429": 10})
        ca, served = str(one.certificate), 0
        async with AsyncClient(one.address, api_key=guarded.keys["alice"], tls_ca=ca, retry_s=0.0) as client:
            with contextlib.suppress(UnavailableError):
                while served < 60:
                    await client.list_jobs()
                    served += 1
        assert served == 50


async def test_one_address_that_connects_too_often_is_refused(guarded: Guarded, tmp_path: Path) -> None:
    async with door(guarded, tmp_path, ("conn_rate gt 100", "conn_rate gt 10")) as one:
        for _ in range(10):
            _, writer = await one.opened(GREEDY)
            writer.transport.abort()
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await one.opened(GREEDY)
        assert (await one.statuses("127.0.0.1", 1)) == Counter({b"200": 1})


async def test_headers_that_never_end_lose_their_connection(guarded: Guarded, tmp_path: Path) -> None:
    async with door(guarded, tmp_path) as one:
        reader, writer = await one.opened(GREEDY)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        async with asyncio.timeout(10.0):
            assert b"408" in await reader.readline()
        writer.close()
