"""One way to run services: open the ports, start, serve gRPC with health and reflection, drain on SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Protocol

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from pydantic import ValidationError

from shared.domain.errors import AfterimageError, ConfigurationError, UnavailableError
from shared.runtime import rpc, telemetry
from shared.runtime.addresses import BALANCED, check_address, target_of
from shared.runtime.clock import Clock, SystemClock
from shared.runtime.datadir import lock_data_dir
from shared.runtime.loop import run
from shared.runtime.settings import Settings
from shared.runtime.settings_names import in_words, misspelt
from shared.service.backends import PORTS, Backends, open_backends, require_shared, works_in_data_dir
from shared.service.readiness import Readiness

PUBLIC = frozenset({"gateway"})
"""Services that clients may reach; the others listen on the internal address only."""


class Service(Protocol):
    """May name the `ports` it uses (a set of names of Backends' fields); alone in its process it opens no others. May
    name those that it `needs`, of catalog and bus: while one is away, health says by the service's name that it does
    not serve (shared/service/readiness.py)."""

    name: ClassVar[str]

    async def start(self, context: Context) -> None:
        """Opens what it needs and subscribes; after this it can serve."""
        ...

    def register(self, server: grpc.aio.Server) -> str | None:
        """Adds its servicer; returns the full gRPC service name, None when it has no rpc."""
        ...

    async def drain(self) -> None:
        """Takes no new work and finishes or hands back what it has."""
        ...

    async def stop(self) -> None: ...


@dataclass
class Context:
    """What a service is given: settings, ports, clock, and channels to the other services."""

    settings: Settings
    backends: Backends
    clock: Clock = field(default_factory=SystemClock)
    internal_address: str = ""
    _channels: dict[str, grpc.aio.Channel] = field(default_factory=dict)

    def channel(self, service: str) -> grpc.aio.Channel:
        """The gRPC channel to a service: its own address from the settings, else the internal one."""
        setting = f"{service}_address"
        addresses = getattr(self.settings, setting, "") or self.internal_address
        if not addresses:
            raise ConfigurationError(
                f"{setting}: this process needs to reach {service}, which does not run in it; "
                f"set AFTERIMAGE_{setting.upper()} to host:port (several replicas: ip:port,ip:port)"
            )
        if addresses not in self._channels:
            options: list[tuple[str, int | str]] = [*rpc.channel_options(self.settings.max_message_bytes)]
            if not addresses.startswith("unix:"):
                options.append(("grpc.service_config", BALANCED))
            target = target_of(addresses, setting)
            self._channels[addresses] = grpc.aio.insecure_channel(target, options=options)
        return self._channels[addresses]

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()


@dataclass
class Running:
    """A started set of services and the addresses they listen on."""

    address: str
    context: Context
    services: Sequence[Service]
    stopping: asyncio.Event


@contextlib.asynccontextmanager
async def running(
    services: Sequence[Service], settings: Settings, *, clock: Clock | None = None
) -> AsyncIterator[Running]:
    """Starts the services in this process, yields while they serve, then drains and stops them in reverse order."""
    ports = frozenset[str]().union(*(getattr(service, "ports", PORTS) for service in services))
    backends = await open_backends(settings, ports)
    socket_dir = Path(tempfile.mkdtemp(prefix="afterimage-"))
    alone = len(services) == 1
    internal_address = "" if alone else f"unix:{socket_dir}/internal.sock"
    context = Context(settings, backends, clock or SystemClock(), internal_address)
    servers: list[grpc.aio.Server] = []
    needs: dict[str, frozenset[str]] = {}
    asking: asyncio.Task[None] | None = None
    started: list[Service] = []
    health_servicer = health.aio.HealthServicer()
    try:
        public = [service for service in services if service.name in PUBLIC or alone]
        internal = [service for service in services if service not in public]
        if internal:
            servers.append(_server(internal, settings, health_servicer, needs))
            _bind(servers[-1], internal_address, "internal address")
        servers.append(_server(public, settings, health_servicer, needs))
        port = _bind(servers[-1], settings.listen, "listen")
        for service in reversed(services):  # the gateway is named first and opens last
            await service.start(context)
            started.append(service)
        for server in servers:
            await server.start()
        for name in ("", *needs):
            await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        asking = asyncio.create_task(Readiness(backends, health_servicer, needs).run())
        host = settings.listen.rpartition(":")[0]
        yield Running(f"{host}:{port}", context, services, asyncio.Event())
    finally:
        if asking is not None:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await health_servicer.enter_graceful_shutdown()
        for service in reversed(started):
            await _carefully(service.name, "drain", service.drain())
        for server in reversed(servers):
            await server.stop(grace=2.0)
        for service in reversed(started):
            await _carefully(service.name, "stop", service.stop())
        await context.close()
        await backends.close()
        shutil.rmtree(socket_dir, ignore_errors=True)


async def _carefully(service: str, stage: str, ending: Awaitable[None]) -> None:
    """One service's trouble with its end must not keep the others from theirs."""
    try:
        await ending
    except Exception as error:
        telemetry.log(service).error(f"{stage} failed", error=repr(error), exc_info=error)


def _server(
    services: Sequence[Service], settings: Settings, health_servicer: Any, needs: dict[str, frozenset[str]]
) -> grpc.aio.Server:
    """A server with these services, health and reflection; notes by the services' full names what they need."""
    server = rpc.server([*rpc.channel_options(settings.max_message_bytes), *rpc.OPTIONS])
    own = {
        name: getattr(service, "needs", frozenset[str]())
        for service in services
        if (name := service.register(server)) is not None
    }
    needs.update(own)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    reflection.enable_server_reflection((*own, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    return server


def _bind(server: grpc.aio.Server, address: str, setting: str) -> int:
    check_address(address, setting)
    try:
        return int(server.add_insecure_port(address))
    except RuntimeError as error:
        raise ConfigurationError(f"{setting}: cannot listen on {address}; is something else there?") from error


class _Ending:
    """SIGTERM and SIGINT: once a process serves it drains; while it starts, the start is given up, and at the second
    signal the process: what loads on a thread cannot be told to stop."""

    def __init__(self, starting: asyncio.Task[Any] | None) -> None:
        self._starting = starting
        self._stopping: asyncio.Event | None = None
        self.early = 0
        """The signal that came before the process served."""

    def listen(self) -> None:
        # also where nothing else would end it: the kernel keeps signals that nobody handles from a container's first
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._asked, number)

    def serving(self, stopping: asyncio.Event) -> None:
        self._stopping = stopping

    def _asked(self, number: int) -> None:
        if self._stopping is not None:
            self._stopping.set()
        elif not self.early and self._starting is not None:
            self.early = number
            self._starting.cancel()
        elif self.early:
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
            os._exit(128 + number)  # a container's first process, for which the default does nothing


async def serve(
    services: Sequence[Service], settings: Settings, *, on_ready: Callable[[Running], None] | None = None
) -> None:
    """Runs until SIGTERM or SIGINT, then drains; `on_ready` hears when it serves (else the log does). When the signal
    comes before that, what has started is ended and SystemExit raised, with 128 + the signal's number."""
    check_free(settings)
    ending = _Ending(asyncio.current_task())
    ending.listen()
    try:
        # the port is taken before models are loaded: another program on it is reported at once
        with telemetry.serving_metrics(settings.metrics_listen):
            await _served(services, settings, ending, on_ready)
    except asyncio.CancelledError:
        if not ending.early:
            raise
        telemetry.log("afterimage").info("ended while starting", signal=signal.Signals(ending.early).name)
        raise SystemExit(128 + ending.early) from None


async def _served(
    services: Sequence[Service], settings: Settings, ending: _Ending, on_ready: Callable[[Running], None] | None
) -> None:
    async with running(services, settings) as process:
        gc.collect()
        gc.freeze()  # half a million objects of the libraries, through which a full collection goes for 250 ms
        ending.serving(process.stopping)
        if on_ready is not None:
            on_ready(process)
        else:
            names = ", ".join(service.name for service in services)
            telemetry.log("afterimage").info(
                "ready", address=process.address, metrics=settings.metrics_listen or "off", services=names
            )
        await process.stopping.wait()
        telemetry.log("afterimage").info("draining")


def check_free(settings: Settings) -> None:
    """Raise ConfigurationError where another process has the data directory or a port: it takes no time, and loading
    models takes seconds."""
    if works_in_data_dir(settings):
        lock_data_dir(settings.data_dir).release()
    check_address(settings.listen, "listen")
    for setting, address in {"listen": settings.listen, "metrics_listen": settings.metrics_listen}.items():
        if not address or address.startswith("unix:"):
            continue
        host, _, port = address.rpartition(":")
        host = host.strip("[]") or "127.0.0.1"
        try:
            socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
        except (OSError, ValueError, OverflowError) as error:
            if getattr(error, "errno", 0) != errno.EADDRINUSE:  # whatever else is wrong the server says that binds it
                continue
            by = f"AFTERIMAGE_{setting.upper()} or `afterimage up --{setting.replace('_', '-')}`"
            raise ConfigurationError(
                f"{setting}: another process listens on {address}; stop it, or name another host:port with {by}"
                + (", or '' for no metrics" if setting == "metrics_listen" else "")
            ) from error


def main(service: type[Service]) -> None:
    """Runs one service alone (`python -m services.<name>`); any argument ends it, `--help` with what it is."""
    if arguments := sys.argv[1:]:
        _usage(service, asked={*arguments} <= {"--help", "-h"})
    try:
        settings = Settings()
        telemetry.configure_logging(settings.log_level)
        for line in misspelt(os.environ):
            telemetry.log(service.name).warning("unknown variable", what=line)
        require_shared(settings, service.name)
        run(serve([service()], settings))
    except (AfterimageError, ValueError) as error:
        said = in_words(error) if isinstance(error, ValidationError) else str(error)
        sys.stderr.write(f"{service.name}: {said}\n")
        raise SystemExit(os.EX_UNAVAILABLE if isinstance(error, UnavailableError) else os.EX_CONFIG) from None


def _usage(service: type[Service], *, asked: bool) -> NoReturn:
    package = service.__module__.rpartition(".")[0]
    out = sys.stdout if asked else sys.stderr
    out.write(
        f"usage: python -m {package}\n\n{sys.modules[package].__doc__}\n\nIt takes no arguments: its settings are "
        "AFTERIMAGE_… variables (shared/settings), and docs/cluster.md says which of them it needs.\n"
    )
    raise SystemExit(0 if asked else os.EX_USAGE)
