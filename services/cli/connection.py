"""Where a command finds Afterimage: what it was told, what runs in the data directory, or a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

from rich.console import Console

from services.cli.embedded import embedded, found_running
from shared import telemetry
from shared.client import AsyncClient
from shared.errors import ConfigurationError, UnavailableError
from shared.settings import Settings

PROBE_S = 1.0


def address_of(target: str | None, settings: Settings) -> str:
    """The address a client of these settings talks to."""
    if target:
        return target
    facts = found_running(settings.data_dir)
    return str(facts["address"]) if facts else settings.listen


def options(**given: object) -> str:
    """Options as they were typed, for a command that is proposed: ` --name value` of each that was; the tenant whom
    everybody is by default goes without saying."""
    said = {name.replace("_", "-"): str(value) for name, value in given.items() if value}
    return "".join(
        f" --{name} {shlex.quote(value)}" for name, value in said.items() if (name, value) != ("tenant", "default")
    )


async def listens(address: str) -> bool:
    """Whether something accepts connections at host:port or unix:path."""
    host, _, port = address.rpartition(":")
    try:
        if address.startswith("unix:"):
            opening = asyncio.open_unix_connection(address.removeprefix("unix:"))
        else:
            opening = asyncio.open_connection(host.strip("[]") or "127.0.0.1", int(port))
        _, writer = await asyncio.wait_for(opening, PROBE_S)
    except (OSError, TimeoutError, ValueError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


@contextlib.asynccontextmanager
async def connected(
    target: str | None, settings: Settings, tenant: str, *, data_dir: Path | None = None
) -> AsyncIterator[AsyncClient]:
    """A client of a process that runs; with `data_dir` (as it was typed) only of the one that works there.

    Raises UnavailableError saying how to start one, ConfigurationError where another directory's listens.
    """
    address = address_of(target, settings)
    if not await listens(address):
        start = f"afterimage up{options(data_dir=data_dir)}"
        raise UnavailableError(f"nothing listens on {address}; start it with `{start}`, or name it with --target")
    _must_be_of(data_dir, target, address)
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
    if target and not await listens(address):
        raise UnavailableError(f"nothing listens on {address}; start it with `afterimage up --listen {address}`")
    if await listens(address):
        _must_be_of(data_dir, target, address)
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
