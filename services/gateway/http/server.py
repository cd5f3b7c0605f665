"""The HTTP server in the gateway's process: uvicorn on the gateway's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import Iterator
from functools import partial

import uvicorn

from services.gateway.console import console
from services.gateway.console.live import Live
from services.gateway.console.operations import Operations
from services.gateway.console.sessions import Sessions
from services.gateway.console.similar import Similar
from services.gateway.erasing import Eraser
from services.gateway.http.api import Api
from services.gateway.http.app import app_of
from services.gateway.http.connections import Connection
from services.gateway.http.identity import Callers
from services.gateway.http.signed_urls import Signer, secret_of
from services.gateway.pending_calls import Calls
from services.gateway.served_models import Models
from services.gateway.uploads import Receiving
from shared.domain.errors import ConfigurationError
from shared.runtime.addresses import check_address
from shared.runtime.settings import Settings
from shared.runtime.settings.network import HTTP_LISTEN
from shared.runtime.telemetry import log
from shared.runtime.tls import https_of
from shared.service import Context
from shared.service.door import keys_needed

HANDSHAKE_S = 5.0
"""Seconds in which a TLS handshake must end; connections count from then on."""
BACKLOG = 1024
"""Connections that may wait until this process accepts them."""
GRACE_S = 2
"""Seconds that running requests have at the end."""


class HttpServer:
    """Listens from the start on, and answers from `serve` on."""

    def __init__(self, context: Context, calls: Calls, models: Models, receiving: Receiving, eraser: Eraser) -> None:
        """Raises ConfigurationError for an address, a secret or a certificate that cannot be used."""
        assert context.door is not None
        assert context.readiness is not None
        settings = context.settings
        secret = secret_of(settings)
        signer = Signer(secret, settings.http_url_lifetime_s)
        sessions = Sessions(context.door, secret, key_needed=keys_needed(settings, settings.http_listen))
        callers = Callers(context.door, settings, sessions)
        jobs = context.backends.catalog.jobs
        api = Api(settings, calls, models, jobs, callers, receiving, eraser, signer, context.readiness, time.time())
        similar = Similar(context, jobs, calls.planning)
        tls = https_of(settings)
        config = uvicorn.Config(
            app_of(api, console.routes(api, sessions, Live(context, calls), Operations(context), similar)),
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
            ssl_context_factory=(lambda _config, _default: tls) if tls else None,
        )
        self._server, self._conversions = _Server(config), api.conversions
        self._task: asyncio.Task[None] | None = None
        self._listener = listener_of(settings)
        self.address = "" if self._listener is None else _url(settings, self._listener, secure=tls is not None)
        """URL; empty where there is no HTTP."""

    async def serve(self) -> None:
        if self._listener is not None:
            self._task = asyncio.create_task(self._server.serve([self._listener]))

    async def stop(self) -> None:
        """Take no more requests, and give the running ones GRACE_S."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        self._conversions.close()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, since the process has its own, and with a bound on TLS handshakes."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        given = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
        tls = self.config.ssl
        for listener in sockets or ():
            server = await asyncio.get_running_loop().create_server(
                partial(Connection, **given),
                sock=listener,
                backlog=BACKLOG,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_S if tls else None,
            )
            self.servers.append(server)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _url(settings: Settings, listener: socket.socket, *, secure: bool) -> str:
    host, port = settings.http_listen.rpartition(":")[0], listener.getsockname()[1]
    return f"{'https' if secure else 'http'}://{host}:{port}"


def listener_of(settings: Settings) -> socket.socket | None:
    """Return the socket of `http_listen`; None where another process has the default port. Raises ConfigurationError
    for an address that cannot be used."""
    address = settings.http_listen
    check_address(address, "http_listen")
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, int(port)), family=family, backlog=BACKLOG)
    except (OSError, ValueError, OverflowError) as error:
        if address == HTTP_LISTEN and getattr(error, "errno", 0) == errno.EADDRINUSE:
            why = f"another process listens on {address}; AFTERIMAGE_HTTP_LISTEN names another host:port"
            log("http").warning("no HTTP API", why=why)
            return None
        rule = f"cannot listen on {address} ({error}); name another host:port, or '' for no HTTP"
        raise ConfigurationError(f"http_listen: {rule}") from error
