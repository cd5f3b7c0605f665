"""An address on the network, and a wiretap on it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, MutableMapping
from pathlib import Path
from typing import Any, ClassVar

import grpc
import httpx
import pytest
import uvicorn
from grpc_health.v1 import health_pb2, health_pb2_grpc
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from typer.testing import CliRunner

from services.cli.app import app
from services.cli.embedded import alone
from services.gateway.http.guard import Admission, Guard, Rules
from services.gateway.http.identity import Callers
from services.gateway.uploads import Receiving
from shared.client import AsyncClient
from shared.client.credentials import bearer
from shared.domain.errors import ConfigurationError, UnavailableError
from shared.domain.identity import BOOTSTRAP, Role, issued, principal_of
from shared.runtime.datadir import write_private
from shared.runtime.settings import Settings
from shared.runtime.tls import https_of
from shared.service import Running, running
from shared.service.door import check_guarded, keys_needed, loopback
from tests.attacks.conftest import made_certificate


class Nothing:
    """A service without methods: what answers is the door, or gRPC."""

    name: ClassVar[str] = "nothing"
    ports: ClassVar[frozenset[str]] = frozenset()

    async def start(self, context: Any) -> None: ...

    def register(self, server: grpc.aio.Server) -> None: ...

    async def drain(self) -> None: ...

    async def stop(self) -> None: ...


class Endless(Nothing):
    """A service with two methods that never end by themselves."""

    def register(self, server: grpc.aio.Server) -> None:
        async def stream(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
            yield b"first"
            await asyncio.sleep(60)

        async def single(_request: bytes, _context: Any) -> bytes:
            await asyncio.sleep(60)
            return b""

        methods: dict[str, Any] = {
            "Stream": grpc.unary_stream_rpc_method_handler(stream, bytes, bytes),
            "Single": grpc.unary_unary_rpc_method_handler(single, bytes, bytes),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Endless", methods)])


async def test_a_revoked_key_ends_the_calls_that_run_under_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream opened before went on for as long as the thief liked."""
    monkeypatch.setattr("shared.service.door.EVERY_S", 0.05)
    async with running([Endless()], settings.model_copy(update={"allow_anonymous": "never"})) as process:
        key = (settings.data_dir / "bootstrap-key").read_text().strip()
        async with grpc.aio.insecure_channel(process.address) as channel:
            stream = channel.unary_stream("/test.Endless/Stream")(b"", metadata=bearer(key))
            single = channel.unary_unary("/test.Endless/Single")(b"", metadata=bearer(key))
            assert await stream.read() == b"first"
            await process.context.backends.catalog.keys.revoke(BOOTSTRAP)
            for call in (stream.read(), single):
                with pytest.raises(grpc.aio.AioRpcError, match="this key ended during the call") as ended:
                    await asyncio.wait_for(call, 5.0)
                assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_revoked_key_ends_its_http_requests_and_streams(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over HTTP both went on until they were finished."""
    monkeypatch.setattr("shared.service.door.EVERY_S", 0.05)
    async with running([Nothing()], settings.model_copy(update={"allow_anonymous": "never"})) as process:
        key = (settings.data_dir / "bootstrap-key").read_text().strip()
        async with _http(process, key) as client:
            calls = [asyncio.create_task(client.get(path)) for path in ("/stream", "/single", "/file")]
            await asyncio.sleep(0.1)
            assert not any(call.done() for call in calls)
            await process.context.backends.catalog.keys.revoke(BOOTSTRAP)
            async with asyncio.timeout(5.0):
                stream, single = await asyncio.gather(*calls[:2])
                with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):  # nothing is added to a file
                    await calls[2]
    assert (stream.status_code, single.status_code) == (200, 401)
    assert stream.text.startswith("event: first\n\nevent: error\n")
    assert "this key ended during the call" in stream.text
    assert single.json()["error"]["code"] == "unauthenticated"


async def test_an_expired_key_ends_its_calls_at_its_own_time(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls ended when the keys were read again, so never while the catalog was away."""
    monkeypatch.setattr("shared.service.door.EVERY_S", 60.0)
    async with running([Endless()], settings.model_copy(update={"allow_anonymous": "never"})) as process:
        assert process.context.door is not None
        added, key = issued(principal_of("acme", "guest", Role))
        await process.context.backends.catalog.keys.add(added, 0.5)
        await process.context.door.open(bootstrap=False)  # reads the keys once
        async with grpc.aio.insecure_channel(process.address) as channel, _http(process, key) as client:
            web = asyncio.create_task(client.get("/single"))
            stream = channel.unary_stream("/test.Endless/Stream")(b"", metadata=bearer(key))
            assert await stream.read() == b"first"
            with pytest.raises(grpc.aio.AioRpcError, match="this key ended during the call"):
                await asyncio.wait_for(stream.read(), 5.0)
            assert (await asyncio.wait_for(web, 5.0)).status_code == 401


@contextlib.asynccontextmanager
async def _http(process: Running, key: str) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of three endless answers behind the gateway's own checks."""

    async def single(_: Request) -> Response:
        await asyncio.sleep(60)
        return Response()

    async def endless(first: bytes) -> AsyncIterator[bytes]:
        yield first
        await asyncio.sleep(60)

    async def stream(_: Request) -> Response:
        return StreamingResponse(endless(b"event: first\n\n"), media_type="text/event-stream")

    async def file(_: Request) -> Response:
        return StreamingResponse(endless(b"half"), media_type="image/png")

    routes = [Route("/single", single), Route("/stream", stream), Route("/file", file)]
    settings, door = process.context.settings, process.context.door
    assert door is not None
    rules = Rules.of(settings)
    guarded = Guard(Admission(Starlette(routes=routes), rules, Callers(door, settings), Receiving(0)), rules)
    config = uvicorn.Config(guarded, port=0, ws="none", lifespan="off", log_config=None)
    server, listener = uvicorn.Server(config), socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve([listener]))
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with httpx.AsyncClient(base_url=address, headers=dict(bearer(key)), trust_env=False) as client:
        yield client
    server.should_exit = True
    await serving


async def test_an_address_on_the_network_needs_keys_and_tls(
    settings: Settings, logs: list[MutableMapping[str, Any]]
) -> None:
    """`--listen 0.0.0.0:50051` gave everybody everything."""
    for address in ("0.0.0.0:0", "[::]:0", "10.0.0.1:0"):
        for allowed in ("loopback", "never"):
            changed = settings.model_copy(update={"listen": address, "allow_anonymous": allowed})
            with pytest.raises(ConfigurationError, match="TLS"):
                async with running([Nothing()], changed):
                    pass
            with pytest.raises(ConfigurationError, match=r"http_listen: .*TLS"):
                check_guarded(
                    settings.model_copy(update={"http_listen": address, "allow_anonymous": allowed}), "http_listen"
                )
    check_guarded(settings)
    assert not logs
    check_guarded(settings.model_copy(update={"listen": "0.0.0.0:0", "allow_anonymous": "always"}))
    assert "ANYONE" in logs[0]["event"]
    behind = {"listen": "0.0.0.0:0", "tls_proxy": True}
    check_guarded(settings.model_copy(update=behind))
    assert "NOBODY but the proxy" in logs[1]["event"]
    assert keys_needed(settings.model_copy(update=behind), "0.0.0.0:0")


async def test_another_user_of_the_machine_reaches_no_server_of_a_command(settings: Settings) -> None:
    """`afterimage generate` and `demo` opened a port of 127.0.0.1, which every user of the machine could call."""
    with alone(settings) as private:
        async with running([Nothing()], private) as process:
            path = Path(process.address.removeprefix("unix:"))
            assert (await asyncio.to_thread(path.parent.stat)).st_mode & 0o777 == 0o700
            async with AsyncClient(process.address, retry_s=0.0) as client:
                with pytest.raises(ConfigurationError, match="another service"):  # there is no gateway here
                    await client.list_jobs()
    assert not await asyncio.to_thread(path.parent.exists)


def test_only_addresses_of_this_machine_are_loopback() -> None:
    assert all(map(loopback, ("127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "unix:/x")))
    assert not any(map(loopback, ("0.0.0.0:1", "[::]:1", "192.168.1.1:1", "example.com:1", ":1", "127.example.com:1")))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
async def test_a_wiretap_reads_no_key_and_a_renewed_certificate_needs_no_restart(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = made_certificate(tmp_path, "first"), made_certificate(tmp_path, "second")
    used = tmp_path / "used.pem", tmp_path / "used.key"
    _copy(first, used)
    changed = settings.model_copy(
        update={"allow_anonymous": "never", "tls_certificate": str(used[0]), "tls_key": str(used[1])}
    )
    async with running([Nothing()], changed) as process:
        key = (settings.data_dir / "bootstrap-key").read_text().strip()

        async def ask(ca: Path | None) -> None:
            options: dict[str, Any] = {"api_key": key, "tls_ca": str(ca or "")}
            async with AsyncClient(process.address, retry_s=0.0, **options) as client:
                await client.list_jobs()

        unknown_method = pytest.raises(ConfigurationError, match="another service")
        with unknown_method:  # past TLS and door: there is no gateway here
            await ask(first[0])
        for wrong in (None, second[0]):
            with pytest.raises(UnavailableError, match="AFTERIMAGE_TLS_CA does not fit"):
                await ask(wrong)
        unsaid = await asyncio.to_thread(CliRunner().invoke, app, ["health", "--target", process.address])
        assert "AFTERIMAGE_TLS_CA does not fit" in str(unsaid.exception)
        monkeypatch.setenv("AFTERIMAGE_TLS_CA", str(first[0]))
        probed = await asyncio.to_thread(CliRunner().invoke, app, ["health", "--target", process.address])
        assert "serving" in probed.stdout
        _copy(second, used)
        with pytest.raises(ConfigurationError, match="another service"):
            await ask(second[0])


async def test_a_start_that_was_killed_before_its_first_key_was_stored_leaves_no_dead_key(settings: Settings) -> None:
    """The file stayed, its key worked nowhere, and no later start made another one."""
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    path = settings.data_dir / "bootstrap-key"
    left = issued(principal_of("default", BOOTSTRAP, Role), BOOTSTRAP)[1]
    write_private(path, f"{left}\n")
    async with running([Nothing()], settings.model_copy(update={"allow_anonymous": "never"})) as process:
        assert path.read_text().strip() == left
        async with AsyncClient(process.address, retry_s=0.0, api_key=left) as client:
            with pytest.raises(ConfigurationError, match="another service"):  # past the door
                await client.list_jobs()


@pytest.mark.parametrize("planted", ["readable", "link"])
async def test_a_first_key_that_others_know_is_not_taken(
    settings: Settings, planted: str, logs: list[MutableMapping[str, Any]]
) -> None:
    """Whoever had put a key of its own there before the first start got every role."""
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    path, text = settings.data_dir / "bootstrap-key", issued(principal_of("default", BOOTSTRAP, Role), BOOTSTRAP)[1]
    if planted == "link":
        write_private(settings.data_dir / "elsewhere", text)
        path.symlink_to(settings.data_dir / "elsewhere")
    else:
        path.write_text(text)
        path.chmod(0o666)
    async with running([Nothing()], settings.model_copy(update={"allow_anonymous": "never"})) as process:
        assert not await process.context.backends.catalog.keys.all()
        assert any(line["event"] == "no bootstrap key" for line in logs)


async def test_the_file_of_the_first_key_is_made_private_again(settings: Settings) -> None:
    changed = settings.model_copy(update={"allow_anonymous": "never"})
    path = settings.data_dir / "bootstrap-key"
    async with running([Nothing()], changed):
        await asyncio.to_thread(path.chmod, 0o644)
    async with running([Nothing()], changed):
        assert (await asyncio.to_thread(path.stat)).st_mode & 0o777 == 0o600


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
async def test_a_probe_needs_no_certificate_and_finds_nothing_but_health(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path has 107 bytes at most
    certificate, key = made_certificate(tmp_path, "used")
    changes = {
        "allow_anonymous": "never", "tls_certificate": str(certificate), "tls_key": str(key),
        "health_listen": "unix:health.sock",
    }  # fmt: skip
    async with (
        running([Nothing()], settings.model_copy(update=changes)),
        grpc.aio.insecure_channel(str(changes["health_listen"])) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        found = await health.Check(health_pb2.HealthCheckRequest(), timeout=5.0)
        assert found.status == health_pb2.HealthCheckResponse.SERVING
        for method in ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "/any.Service/Method"):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary(method)(b"", timeout=5.0)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
async def test_https_uses_a_renewed_certificate_without_a_restart(settings: Settings, tmp_path: Path) -> None:
    first, second = made_certificate(tmp_path, "first"), made_certificate(tmp_path, "second")
    used = tmp_path / "used.pem", tmp_path / "used.key"
    _copy(first, used)
    changed = settings.model_copy(update={"tls_certificate": str(used[0]), "tls_key": str(used[1])})

    async def closed(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(closed, "127.0.0.1", 0, ssl=https_of(changed))

    async def shake_hands(ca: Path) -> None:
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=ssl.create_default_context(cafile=ca))
        writer.close()

    async with server:
        await shake_hands(first[0])
        with pytest.raises(ssl.SSLCertVerificationError):
            await shake_hands(second[0])
        _copy(second, used)
        await shake_hands(second[0])
        used[1].write_text("no key")
        await shake_hands(second[0])
    with pytest.raises(ConfigurationError, match="tls_certificate"):
        https_of(changed)


def _copy(source: tuple[Path, Path], target: tuple[Path, Path]) -> None:
    for one, other in zip(source, target, strict=True):
        shutil.copyfile(one, other)
