"""Strangers hold the HTTP port with silence, and callers fill the memory with images."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from services.gateway import uploads
from services.gateway.http import connections
from services.gateway.http.server import _Server
from shared.runtime import addresses
from shared.runtime.settings import Settings
from shared.runtime.tls import https_of
from tests.attacks.conftest import Guarded, made_certificate
from tests.attacks.test_http import http
from tests.attacks.test_uploads import until
from tests.flows.house import SLOW, house
from tests.flows.reuse.test_uploads import RED

pytestmark = pytest.mark.asyncio(loop_scope="session")

Connected = tuple[asyncio.StreamReader, asyncio.StreamWriter]
EDIT = "POST /v1/images/edits HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: 1000\r\n"


@contextlib.asynccontextmanager
async def connected(guarded: Guarded, *lines: str) -> AsyncIterator[Connected]:
    """A connection over which these lines were sent."""
    address = urlsplit(guarded.house.process.http_address)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write("".join(lines).encode())
        await writer.drain()
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def said(connection: Connected, within_s: float = 5.0) -> str:
    """Return the rest of what the server says until it closes the connection; empty for one that it broke."""
    async with asyncio.timeout(within_s):
        try:
            return (await connection[0].read()).decode()
        except ConnectionResetError:
            return ""


async def test_silent_connections_and_endless_heads_are_closed(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.3)
    head = "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"

    async def trickle(writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                writer.write(b"X: y\r\n")
                await writer.drain()
                await asyncio.sleep(0.05)

    async with connected(guarded) as silent, connected(guarded, head) as endless, connected(guarded, head) as late:
        trickling = asyncio.create_task(trickle(endless[1]))
        assert set(await asyncio.gather(said(silent), said(endless), said(late))) == {""}
        trickling.cancel()
        await asyncio.gather(trickling, return_exceptions=True)
    async with connected(guarded, head, "\r\n") as answered:
        assert (await said(answered)).startswith("HTTP/1.1 200")  # and then closed, since no second request comes


async def test_a_client_that_reads_no_answer_is_closed(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large answer was held for as long as the client liked."""
    monkeypatch.setattr(connections, "UNREAD_S", 0.3)
    get = "GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    async with http(guarded) as client:
        size = len((await client.get("/openapi.json")).content)
    asked = 32 * 2**20 // size  # more than the kernel holds between both ends

    async def until_broken(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"G")
            await writer.drain()
            await asyncio.sleep(0.05)

    async with connected(guarded, get * asked) as (_, writer), asyncio.timeout(10.0):
        with pytest.raises(ConnectionError):
            await until_broken(writer)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
async def test_silence_before_the_handshake_is_bounded(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.http.server.HANDSHAKE_S", 1.0)
    certificate, key = made_certificate(tmp_path, "used")
    tls = https_of(settings.model_copy(update={"tls_certificate": str(certificate), "tls_key": str(key)}))
    assert tls is not None

    async def application(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(
        application,
        http=connections.Connection,
        lifespan="off",
        log_config=None,
        access_log=False,
        ssl_context_factory=lambda _config, _default: tls,
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task((secured := _Server(config)).serve([listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        assert await said((reader, writer)) == ""
        writer.close()
        port = listener.getsockname()[1]
        async with httpx.AsyncClient(verify=ssl.create_default_context(cafile=certificate)) as client:
            assert (await client.get(f"https://127.0.0.1:{port}/")).status_code == 204
        secured.should_exit = True
        await serving


async def test_a_client_that_reads_slowly_gets_its_whole_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNREAD_S", 1.0)
    monkeypatch.setattr(connections, "UNREAD_BYTES", 1)
    size = 32 * 2**20  # in one piece, as images are sent

    async def application(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
        await send({"type": "http.response.body", "body": bytes(size)})

    config = uvicorn.Config(application, http=connections.Connection, lifespan="off", log_config=None, access_log=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        for _ in range(16):
            await reader.readexactly(size // 16)
            await asyncio.sleep(0.1)
        writer.close()
        server.should_exit = True
        await serving


async def test_connections_above_the_bound_are_refused(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "MOST_CONNECTIONS", 3)
    async with contextlib.AsyncExitStack() as held:
        for _ in range(3):
            await held.enter_async_context(connected(guarded))
        async with connected(guarded) as fourth:
            assert await said(fourth) == ""
    async with http(guarded) as client:
        assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize("length", ["Content-Length: 16777216\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"])
async def test_a_get_has_no_body(guarded: Guarded, length: str) -> None:
    """200 strangers sent 16 MiB each to the path of an upload, and were refused after the last byte."""
    get, key = "GET /v1/videos HTTP/1.1\r\nHost: 127.0.0.1\r\n", f"Authorization: Bearer {guarded.keys['alice']}\r\n"
    for said_first, status in (("", b"401"), (key, b"400")):
        async with connected(guarded, get, said_first, length) as connection:
            first = await asyncio.wait_for(connection[0].readline(), 5.0)
            assert first.startswith(b"HTTP/1.1 " + status)


async def test_images_that_are_sent_along_are_few_at_once(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "RECEIVED_AT_ONCE", 8)
    sending = f"{EDIT}Host: 127.0.0.1\r\nAuthorization: Bearer {guarded.keys['eve']}\r\n\r\n"
    async with connected(guarded, sending), connected(guarded, sending):
        await until(guarded, 2)
        async with connected(guarded, sending) as third:
            assert (await asyncio.wait_for(third[0].readline(), 5.0)).startswith(b"HTTP/1.1 429")
        async with http(guarded, guarded.keys["alice"]) as alice:
            form = {"prompt": "a fox", "num_inference_steps": "2"}
            answers = [
                await alice.post("/v1/images/edits", data=form, files={"image": RED}),
                await alice.post("/v1/videos", json={"prompt": "a fox", "model": "none"}),  # has no image
            ]
        assert [answer.status_code for answer in answers] == [200, 404], [answer.text for answer in answers]
        await until(guarded, 2)
    await until(guarded, 0)


async def test_an_image_counts_until_it_is_stored_and_no_longer(settings: Settings, tiny: Path) -> None:
    given = {"large": SLOW, "http_listen": "127.0.0.1:0", "encoder": str(tiny / "clip")}
    form = {"prompt": "a fox", "num_inference_steps": "1000"}
    async with house(settings.model_copy(update=given)) as it, http(slow := Guarded(it, {}, "")) as client:
        generating = asyncio.create_task(client.post("/v1/images/edits", data=form, files={"image": RED}))
        async with asyncio.timeout(10.0):
            while not (running := (await it.client.list_jobs())[0]):
                await asyncio.sleep(0.01)
        await until(slow, 0)
        assert not generating.done()
        await it.client.cancel(running[0].job.id)
        await generating
