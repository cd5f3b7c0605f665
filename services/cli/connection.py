"""Find the Afterimage that a command calls: by --target, in the data directory, or inside the command itself."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import typer
from rich.console import Console

from protos import gateway_pb2 as pb
from protos.gateway_pb2_grpc import GatewayServiceStub
from services.cli.embedded import embedded, found_running
from shared.client import AsyncClient
from shared.client.credentials import bearer, channel
from shared.domain.errors import ConfigurationError, InvalidRequestError
from shared.runtime import rpc, telemetry
from shared.runtime.addresses import SILENT_S, NothingListensError, check_target, target_of, unreachable
from shared.runtime.settings import Settings
from shared.runtime.tls import OPERATOR, expecting, mesh_of

LOCATE_S = 3.0


def address_of(target: str | None, settings: Settings) -> str:
    """Return the address that a client of these settings calls; raise InvalidRequestError for a malformed address."""
    if target:
        return check_target(target)
    facts = found_running(settings.data_dir)
    return str(facts["address"]) if facts else check_target(settings.listen, "listen")


def say_asked(where: str) -> None:
    """Print on stderr which server the command calls; stdout keeps only the command's result."""
    typer.secho(f"asking {where}", dim=True, err=True)


def server_of(url: str) -> str:
    """Return scheme, host and port of a URL, without user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


async def service_address(service: str, target: str | None, settings: Settings, data_dir: Path | None) -> str:
    """Return the address of a service that clients cannot reach: its own, or inside the process of the gateway.

    The gateway is that of the command `generate`. Prints the called address on stderr. Returns an empty address if no
    process serves this data directory and nothing listens on `listen`. With `data_dir`, as the user typed it, only a
    process that works in this directory is used. Raises ConfigurationError when the gateway's process does not run the
    service.
    """
    own = "" if data_dir or target else str(getattr(settings, f"{service}_address"))
    facts = None if own or target else found_running(settings.data_dir)
    if own:
        # a TLS server says nothing before its client
        silent_s = None if settings.mesh_certificates else SILENT_S
        if "," not in own and (why := await unreachable(own, silent_s)) is not None:
            raise why
        say_asked(own)
        return target_of(own, f"{service}_address")
    if facts and await unreachable(str(facts["internal"])) is None:
        say_asked(str(facts["address"]))
        return str(facts["internal"])
    address = address_of(target, settings)
    why = await unreachable(address, SILENT_S) if target or data_dir is None else NothingListensError()
    if isinstance(why, NothingListensError) and not target:
        return ""
    if why is not None:
        raise why
    say_asked(address)
    return await _behind(address, service)


def channel_to(service: str, address: str, settings: Settings) -> grpc.aio.Channel:
    """Return a channel to what `service_address` found, by mutual TLS where services use it. Raises
    ConfigurationError."""
    own, mesh = str(getattr(settings, f"{service}_address")), mesh_of(settings, OPERATOR)
    if mesh is None or not own or address != target_of(own, f"{service}_address"):
        return channel(address)
    return grpc.aio.secure_channel(address, mesh.of_a_client(), options=[expecting(service)])


async def _behind(address: str, service: str) -> str:
    async with channel(address) as to_gateway:
        try:
            locate = GatewayServiceStub(to_gateway).Locate
            located = await rpc.call(locate, pb.LocateRequest(), timeout_s=LOCATE_S, metadata=bearer())
        except ConfigurationError:  # no gateway listens there: the caller's next call shows whether the service does
            return address
    if not located.internal_address:
        setting = f"{service}_address"
        raise ConfigurationError(
            f"{setting}: the gateway at {address} does not run {service} where this command can reach it; set "
            f"AFTERIMAGE_{setting.upper()}=host:port or --target, or run this command on the gateway's machine"
        )
    return str(located.internal_address)


def options(**given: object) -> str:
    """Return the options that the user typed, as ` --name value`, for a command that a message proposes.

    The default tenant is left out.
    """
    said = {name.replace("_", "-"): str(value) for name, value in given.items() if value}
    return "".join(
        f" --{name} {shlex.quote(value)}" for name, value in said.items() if (name, value) != ("tenant", "default")
    )


@contextlib.asynccontextmanager
async def connected(
    target: str | None, settings: Settings, tenant: str, *, data_dir: Path | None = None
) -> AsyncIterator[AsyncClient]:
    """Yield a client of a running process; with `data_dir`, as the user typed it, only of the process working there.

    Raises UnavailableError with the command that starts one, and ConfigurationError when the process that listens works
    in another directory.
    """
    address = address_of(target, settings)
    why = await unreachable(address, SILENT_S)
    if isinstance(why, NothingListensError):
        start = f"`afterimage up{options(data_dir=data_dir, listen=target)}`"
        raise NothingListensError(f"{why}; start it with {start}" + ("" if target else ", or name it with --target"))
    if why is not None:
        raise why
    must_be_of(data_dir, target, address)
    say_asked(address)
    async with AsyncClient(address, tenant=tenant) as client:
        yield client


@contextlib.asynccontextmanager
async def connected_or_embedded(
    target: str | None,
    settings: Settings,
    tenant: str,
    console: Console,
    *,
    data_dir: Path | None = None,
    check: Callable[[], object] = lambda: None,
) -> AsyncIterator[AsyncClient]:
    """Yield a client of a running process, or else of one embedded in this command; a named target must be running.

    With `data_dir`, as the user typed it, the running process must work there; else ConfigurationError. check: raises
    what the embedded process would raise, before its start of some seconds.
    """
    address = address_of(target, settings)
    # the client retries a silent server, which may be starting; only a named directory limits the wait
    why = await unreachable(address, SILENT_S if data_dir and not target else None)
    if target and isinstance(why, NothingListensError):
        raise NothingListensError(f"{why}; start it with `afterimage up{options(listen=target)}`")
    if why is not None and not isinstance(why, NothingListensError):
        raise why
    if why is None:
        must_be_of(data_dir, target, address)
        say_asked(address)
        with _address_named(address):
            async with AsyncClient(address, tenant=tenant) as client:
                yield client
        return
    check()
    telemetry.configure_logging("error")
    console.print(
        f"Nothing listens on {address}: starting Afterimage in this process, for this request "
        f"(data {settings.data_dir.absolute()}) …",
        style="dim",
        highlight=False,
    )
    async with (
        embedded(settings) as process,
        AsyncClient(process.address, tenant=tenant, api_key="", tls_ca="") as client,
    ):
        yield client


@contextlib.contextmanager
def _address_named(address: str) -> Iterator[None]:
    """Name the address in an error about the models that a server serves: another server may serve others."""
    try:
        yield
    except InvalidRequestError as error:
        if error.field not in ("modality", "quality"):
            raise
        error.args = (f"{error}; asked {address}",)
        raise


def must_be_of(data_dir: Path | None, target: str | None, address: str) -> None:
    """Raise ConfigurationError when the user named a data directory and no running process is known to work in it."""
    if data_dir is None or target or found_running(data_dir):
        return
    raise ConfigurationError(
        f"data_dir: nothing serves {data_dir.absolute()}, and the process on {address} works in another directory: "
        "leave --data-dir out to use that process, or start one here: "
        f"`afterimage up{options(data_dir=data_dir)} --listen HOST:PORT`"
    )
