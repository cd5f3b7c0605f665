"""Calls to the cache maintainer: the one that is running, or one that is started for the call."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import typer

from protos.cache_maintainer_pb2_grpc import CacheMaintainerServiceStub
from services.cli.connection import say_asked, service_address
from services.cli.embedded import alone, settings_from
from shared.domain.errors import ConfigurationError, NotFoundError
from shared.runtime import rpc, telemetry
from shared.runtime.settings import Settings

TIMEOUT_S = 30.0


def ask_maintainer(
    data_dir: Path | None,
    target: str | None,
    method: str,
    request: Any,
    question: str = "",
    *,
    timeout_s: float = TIMEOUT_S,
) -> Any:
    """The maintainer's reply; with a question, after the user has said yes, knowing which one is asked."""

    async def asked() -> Any:
        async with maintainer_stub(data_dir, target) as stub:
            if question:
                typer.confirm(question, abort=True)
            return await rpc.call(getattr(stub, method), request, timeout_s=timeout_s)

    return asyncio.run(asked())


def require_data_dir(settings: Settings, unserved: str = "") -> None:
    """NotFoundError for an embedded catalog whose data directory is not there: nothing is made by asking.

    `unserved` says first where no server was found.
    """
    data = settings.data_dir.absolute()
    if not data.exists() and str(data) in settings.catalog_url:
        raise NotFoundError(f"{unserved}data_dir: there is no {data}; the first picture makes it")


@contextlib.asynccontextmanager
async def maintainer_stub(data_dir: Path | None, target: str | None) -> AsyncIterator[Any]:
    """A stub of the maintainer that is asked, or of one started for this call where none runs."""
    settings = settings_from(data_dir=data_dir)
    if address := await service_address("cache_maintainer", target, settings, data_dir):
        async with grpc.aio.insecure_channel(address) as channel:
            yield CacheMaintainerServiceStub(channel)
        return
    if not settings.catalog_url.startswith("sqlite"):  # one started here would lead, with this shell's settings
        raise ConfigurationError(
            "cache_maintainer_address: a catalog on a server has its cache maintainer in a process of its own; name "
            "that: AFTERIMAGE_CACHE_MAINTAINER_ADDRESS=host:port (`make stack-up` prints it), or --target"
        )
    nowhere = f"nothing listens on {settings.listen} (`afterimage up` starts it, --target names another), and "
    require_data_dir(settings, "" if data_dir else nowhere)
    from services.cache_maintainer.service import CacheMaintainerService
    from shared.service import running

    telemetry.configure_logging("error")
    say_asked(f"the cache in {settings.data_dir.absolute()} (nothing serves it now)")
    async with (
        running([CacheMaintainerService()], alone(settings)) as process,
        grpc.aio.insecure_channel(process.address) as channel,
    ):
        yield CacheMaintainerServiceStub(channel)
