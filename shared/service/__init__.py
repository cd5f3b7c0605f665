"""Run services: open the ports, start, serve gRPC with health and reflection, drain and stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from shared.domain.errors import ConfigurationError
from shared.runtime import rpc, rpc_server, telemetry
from shared.runtime.addresses import BALANCED, check_address, target_of
from shared.runtime.clock import Clock, SystemClock
from shared.runtime.direct import Answering, DirectChannel
from shared.runtime.settings import Settings
from shared.runtime.tls import Certificate, credentials_of, expecting, mesh_of
from shared.runtime.tracing import close_tracing, open_tracing
from shared.service.backends import PORTS, Backends, open_backends
from shared.service.callers import Callers
from shared.service.door import Door, check_guarded, keys_needed
from shared.service.health import Health
from shared.service.readiness import Readiness
from shared.service.tokens import Tokens

Stub = TypeVar("Stub")
LONGEST_CALL_S = 600.0
"""Seconds for calls that still run when their channel is closed; an erasure may take so long."""
PUBLIC = frozenset({"gateway"})
"""Services that clients may call. The others listen only on the internal address."""


class Service(Protocol):
    """One service of a process.

    A class may name the `ports` that it uses, by the fields of Backends; alone in its process it opens no others. It
    may also name the ports that it `needs`, of catalog and bus. While one of them is away, the health service reports
    the service's name as not serving (shared/service/readiness.py). Its `callers` are the services and the
    methods that each may call where certificates tell them apart (setting `mesh_certificates`); commands may call all.
    One that `receives_images` takes messages of max_message_bytes, all others only what holds text.
    """

    name: ClassVar[str]

    async def start(self, context: Context) -> None:
        """Open resources and subscribe; afterwards the service can serve."""
        ...

    def register(self, server: grpc.aio.Server) -> str | None:
        """Add the servicer to the server; return the full gRPC service name, or None for a service without RPCs."""
        ...

    async def drain(self) -> None:
        """Accept no new work; finish the running work or hand it back."""
        ...

    async def stop(self) -> None: ...


@runtime_checkable
class HttpService(Protocol):
    """A service with an HTTP address (setting `http_listen`) besides gRPC."""

    http_address: str
    """URL that the service listens on; empty: none."""

    async def serve_http(self) -> None:
        """Accept HTTP requests; called once the gRPC servers of the process answer."""
        ...


@dataclass
class Context:
    """Settings, ports, clock, and channels to the other services, for a service to use."""

    settings: Settings
    backends: Backends
    clock: Clock = field(default_factory=SystemClock)
    internal_address: str = ""
    inside: Answering | None = None
    """The server behind the internal address; None: the process has none."""
    door: Door | None = None
    """The check of callers; None in a process without the catalog."""
    readiness: Readiness | None = None
    mesh: Certificate | None = None
    """Certificate that this process presents to other services; None: plain text."""
    _presented: grpc.ChannelCredentials | None = None
    _channels: dict[tuple[str, str], grpc.aio.Channel] = field(default_factory=dict)
    _stubs: dict[tuple[Any, str], Any] = field(default_factory=dict)
    _former: list[grpc.aio.Channel] = field(default_factory=list)
    _closing: set[asyncio.Task[None]] = field(default_factory=set)

    def addresses(self, service: str) -> str:
        """Return a service's addresses from the settings, else the internal address; empty where neither is known."""
        return str(getattr(self.settings, f"{service}_address", "")) or self.internal_address

    def stub(self, kind: Callable[[grpc.aio.Channel], Stub], service: str) -> Stub:
        """Return a stub of a service. Ask for it at each call: renewed certificates need another channel.

        Raises ConfigurationError as `channel` does."""
        channel = self.channel(service)
        if (kind, service) not in self._stubs:
            self._stubs[kind, service] = kind(channel)
        found: Stub = self._stubs[kind, service]
        return found

    def channel(self, service: str) -> grpc.aio.Channel:
        """Return the gRPC channel to a service. Raise ConfigurationError where no address is known."""
        setting, addresses = f"{service}_address", self.addresses(service)
        if not addresses:
            raise ConfigurationError(
                f"{setting}: this process needs to call {service}, which does not run in it; "
                f"set AFTERIMAGE_{setting.upper()} to host:port (several replicas: ip:port,ip:port)"
            )
        credentials = None if self.mesh is None or addresses.startswith("unix:") else self._credentials(self.mesh)
        if (service, addresses) not in self._channels:
            options: list[tuple[str, int | str]] = [*rpc.channel_options(self.settings.max_message_bytes)]
            if not addresses.startswith("unix:"):
                options.append(("grpc.service_config", BALANCED))
            target = target_of(addresses, setting)
            if credentials is None:
                made = grpc.aio.insecure_channel(target, options=options)
            else:
                made = grpc.aio.secure_channel(target, credentials, options=[*options, expecting(service)])
            if self.inside is not None and addresses == self.internal_address:
                made = DirectChannel(made, self.inside, self.settings.max_message_bytes)
            self._channels[service, addresses] = made
        return self._channels[service, addresses]

    def _credentials(self, mesh: Certificate) -> grpc.ChannelCredentials:
        """Return what the files of the mesh say; after a renewal, make new channels with it. Unreadable new files are
        logged, and the last ones hold."""
        if self._presented is None:
            self._presented = mesh.of_a_client()
        elif mesh.renewed():
            try:
                self._presented = mesh.of_a_client()
            except ConfigurationError as error:
                telemetry.log("tls").error("certificate not read again", error=str(error))
                return self._presented
            # calls may still run on the former channels; those before hold a Watch on their server, and are closed
            for channel in self._former:
                closing = asyncio.create_task(channel.close(LONGEST_CALL_S))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            self._former, self._channels, self._stubs = [*self._channels.values()], {}, {}
        return self._presented

    async def close(self) -> None:
        for closing in self._closing:
            closing.cancel()
        for channel in (*self._former, *self._channels.values()):
            await channel.close()


@dataclass
class Running:
    """Started services, and the public address that they listen on."""

    address: str
    context: Context
    services: Sequence[Service]
    stopping: asyncio.Event

    @property
    def http_address(self) -> str:
        """URL of the HTTP API; empty: none."""
        return next((one.http_address for one in self.services if isinstance(one, HttpService)), "")


@contextlib.asynccontextmanager
async def running(
    services: Sequence[Service], settings: Settings, *, clock: Clock | None = None
) -> AsyncIterator[Running]:
    """Start the services in this process, yield while they serve, then drain and stop them in reverse order."""
    ports = frozenset[str]().union(*(getattr(service, "ports", PORTS) for service in services))
    listening = ["listen", *(["http_listen"] if settings.http_listen and _any_http(services) else [])]
    alone = len(services) == 1
    first = services[0].name  # the gateway, where several services share the process
    inner = alone and first not in PUBLIC and not settings.listen.startswith("unix:")
    behind = mesh_of(settings, first) if inner else None  # certificates say who calls, so keys need not
    if behind is None:
        for setting in listening:
            check_guarded(settings, setting)
    bootstrap = behind is None and any(keys_needed(settings, getattr(settings, setting)) for setting in listening)
    if bootstrap:
        ports |= {"catalog"}  # has the keys
    credentials = behind.credentials() if behind else credentials_of(settings)
    with _uncollected():
        backends = await open_backends(settings, ports)
    socket_dir = Path(tempfile.mkdtemp(prefix="afterimage-"))
    internal_address = "" if alone else f"unix:{socket_dir}/internal.sock"
    context = Context(settings, backends, clock or SystemClock(), internal_address, mesh=mesh_of(settings, first))
    servers: list[grpc.aio.Server] = []
    needs: dict[str, frozenset[str]] = {}
    tasks: list[asyncio.Task[None]] = []
    started: list[Service] = []
    health_servicer, tracer = Health(), None
    try:
        tracer = open_tracing(settings, services[0].name if alone else "afterimage")
        public = [service for service in services if service.name in PUBLIC or alone]
        internal = [service for service in services if service not in public]
        if internal:
            servers.append(_server(internal, settings, health_servicer, needs))
            context.inside = servers[-1]
            _bind(servers[-1], internal_address, "internal address")
        needed = behind is None and keys_needed(settings, settings.listen)
        tokens = Tokens.of(settings) if first in PUBLIC else None
        context.door = Door(backends.catalog, settings, tokens, needed=needed) if "catalog" in ports else None
        context.readiness = Readiness(backends, health_servicer, needs)
        doors = [context.door] if context.door else []
        checks = [*doors, *([Callers(getattr(services[0], "callers", {}))] if behind else [])]
        servers.append(_server(public, settings, health_servicer, needs, checks))
        port = _bind(servers[-1], settings.listen, "listen", credentials)
        if settings.health_listen:
            servers.append(rpc_server.server(rpc_server.server_options()))
            health_pb2_grpc.add_HealthServicer_to_server(health_servicer, servers[-1])
            _bind(servers[-1], settings.health_listen, "health_listen")
        with _uncollected():
            for service in reversed(services):  # the gateway is named first and opens last
                await service.start(context)
                started.append(service)
        for door in doors:
            await door.open(bootstrap=bootstrap)
            tasks.append(asyncio.create_task(door.run()))
        for server in servers:
            await server.start()
        backends.started()
        for name in ("", *needs):
            await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        tasks.append(asyncio.create_task(context.readiness.run()))
        for service in services:
            if isinstance(service, HttpService):
                await service.serve_http()
        host = settings.listen.rpartition(":")[0]
        address = settings.listen if host == "unix" else f"{host}:{port}"
        yield Running(address, context, services, asyncio.Event())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await health_servicer.enter_graceful_shutdown()
        for service in reversed(started):
            await _carefully(service.name, "drain", service.drain())
        for server in reversed(servers):
            await server.stop(grace=2.0)
        for service in reversed(started):
            await _carefully(service.name, "stop", service.stop())
        await context.close()
        await backends.close()
        await asyncio.to_thread(close_tracing, tracer)
        shutil.rmtree(socket_dir, ignore_errors=True)


def _any_http(services: Sequence[Service]) -> bool:
    return any(isinstance(service, HttpService) for service in services)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Pause Python's garbage collection: what a start loads stays, and each collection walks all of it."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


async def _carefully(service: str, stage: str, ending: Awaitable[None]) -> None:
    """Await one service's ending, and log its error so that the other services still end."""
    try:
        await ending
    except Exception as error:
        telemetry.log(service).error(f"{stage} failed", error=repr(error), exc_info=error)


def _server(
    services: Sequence[Service],
    settings: Settings,
    health_servicer: Health,
    needs: dict[str, frozenset[str]],
    checks: Sequence[grpc.aio.ServerInterceptor] = (),
) -> grpc.aio.Server:
    """Return a server with these services, health and reflection; add their needs by full service name to `needs`."""
    options = rpc.channel_options(settings.max_message_bytes, _most_received(services, settings))
    server = rpc_server.server([*options, *rpc_server.server_options()], checks)
    own = {
        name: getattr(service, "needs", frozenset[str]())
        for service in services
        if (name := service.register(server)) is not None
    }
    needs.update(own)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    # enable_server_reflection would add the blocking one, whose open calls hold a thread each
    reflected = reflection.aio.ReflectionServicer((*own, HEALTH, reflection.SERVICE_NAME))
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflected, server)
    return server


def _most_received(services: Sequence[Service], settings: Settings) -> int:
    """Return the bytes of a request at most. Without images, those of clients hold two prompts, others 16."""
    if any(getattr(service, "receives_images", False) for service in services):
        return settings.max_message_bytes
    prompts = 2 if all(service.name in PUBLIC for service in services) else 16
    return min(settings.max_message_bytes, 2**17 + 4 * prompts * settings.max_prompt_chars)


def _bind(
    server: grpc.aio.Server, address: str, setting: str, credentials: grpc.ServerCredentials | None = None
) -> int:
    check_address(address, setting)
    try:
        if credentials is not None:
            return int(server.add_secure_port(address, credentials))
        return int(server.add_insecure_port(address))
    except RuntimeError as error:
        raise ConfigurationError(
            f"{setting}: cannot listen on {address}; another process may use it, choose a free one"
        ) from error
