"""Where a command finds Afterimage: what it was told, what runs in the data directory, or a process of its own."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import typer
from rich.console import Console

from protos import gateway_pb2 as pb
from protos.gateway_pb2_grpc import GatewayServiceStub
from services.cli.embedded import embedded, found_running
from shared.client import AsyncClient
from shared.domain.errors import ConfigurationError
from shared.runtime import rpc, telemetry
from shared.runtime.addresses import SILENT_S, NothingListensError, check_target, target_of, unreachable
from shared.runtime.settings import Settings

LOCATE_S = 3.0


def address_of(target: str | None, settings: Settings) -> str:
    """The address that a client of these settings calls; raises InvalidRequestError where that is no address."""
    if target:
        return check_target(target)
    facts = found_running(settings.data_dir)
    return str(facts["address"]) if facts else check_target(settings.listen, "listen")


def say_asked(where: str) -> None:
    """One line on stderr, so that what a command prints stays as it is."""
    typer.secho(f"asking {where}", dim=True, err=True)


def server_of(url: str) -> str:
    """Scheme, host and port of a URL: nothing of it is secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


async def service_address(service: str, target: str | None, settings: Settings, data_dir: Path | None) -> str:
    """Where a service that clients do not reach listens: itself, or behind the gateway that `generate` would find.

    Says which one. Empty where nothing serves this data directory and nothing listens on `listen`; with `data_dir` (as
    it was typed) only the directory counts. Raises ConfigurationError where the gateway's process runs no such service.
    """
    own = "" if data_dir or target else str(getattr(settings, f"{service}_address"))
    facts = None if own or target else found_running(settings.data_dir)
    if own:
        if "," not in own and (why := await unreachable(own, SILENT_S)) is not None:
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


async def _behind(address: str, service: str) -> str:
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            located = await rpc.call(GatewayServiceStub(channel).Locate, pb.LocateRequest(), timeout_s=LOCATE_S)
        except ConfigurationError:  # no gateway: it is the service itself, or says that it is not
            return address
    if not located.internal_address:
        setting = f"{service}_address"
        raise ConfigurationError(
            f"{setting}: the gateway at {address} does not run {service} where this command can reach it; name that: "
            f"AFTERIMAGE_{setting.upper()}=host:port or --target, or run this command on the gateway's machine"
        )
    return str(located.internal_address)


def options(**given: object) -> str:
    """Options as they were typed, for a command that is proposed: ` --name value` of each that was; the tenant whom
    everybody is by default goes without saying."""
    said = {name.replace("_", "-"): str(value) for name, value in given.items() if value}
    return "".join(
        f" --{name} {shlex.quote(value)}" for name, value in said.items() if (name, value) != ("tenant", "default")
    )


@contextlib.asynccontextmanager
async def connected(
    target: str | None, settings: Settings, tenant: str, *, data_dir: Path | None = None
) -> AsyncIterator[AsyncClient]:
    """A client of a process that runs; with `data_dir` (as it was typed) only of the one that works there.

    Raises UnavailableError saying how to start one, ConfigurationError where another directory's listens.
    """
    address = address_of(target, settings)
    why = await unreachable(address, SILENT_S)
    if isinstance(why, NothingListensError):
        start = f"afterimage up{options(data_dir=data_dir)}"
        raise NothingListensError(f"{why}; start it with `{start}`, or name it with --target")
    if why is not None:
        raise why
    _must_be_of(data_dir, target, address)
    say_asked(address)
    async with AsyncClient(address, tenant=tenant) as client:
        yield client


@contextlib.asynccontextmanager
async def connected_or_embedded(
    target: str | None, settings: Settings, tenant: str, console: Console, *, data_dir: Path | None = None
) -> AsyncIterator[AsyncClient]:
    """A client of what runs, or of an embedded instance started for this one command; a named target must run.

    With `data_dir` (as it was typed) what runs must work there; raises ConfigurationError where it does not.
    """
    address = address_of(target, settings)
    # without a directory to find there, what is silent is waited for: it may be starting
    why = await unreachable(address, SILENT_S if data_dir and not target else None)
    if target and isinstance(why, NothingListensError):
        raise NothingListensError(f"{why}; start it with `afterimage up --listen {address}`")
    if why is not None and not isinstance(why, NothingListensError):
        raise why
    if why is None:
        _must_be_of(data_dir, target, address)
        say_asked(address)
        async with AsyncClient(address, tenant=tenant) as client:
            yield client
        return
    telemetry.configure_logging("error")
    console.print(
        f"Nothing listens on {address}: starting Afterimage in this process, for this picture "
        f"(data {settings.data_dir.absolute()}) …",
        style="dim",
        highlight=False,
    )
    async with embedded(settings) as process, AsyncClient(process.address, tenant=tenant) as client:
        yield client


def _must_be_of(data_dir: Path | None, target: str | None, address: str) -> None:
    """Raises ConfigurationError where a data directory was named and whoever listens is not known to work in it."""
    if data_dir is None or target or found_running(data_dir):
        return
    raise ConfigurationError(
        f"data_dir: nothing serves {data_dir.absolute()}, and what listens on {address} works in another directory: "
        "leave --data-dir out to use that, or start one here: "
        f"`afterimage up{options(data_dir=data_dir)} --listen HOST:PORT`"
    )
