"""Calls to the cache maintainer: the running one, or one that is started for the call."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import typer

from protos.cache_maintainer_pb2_grpc import CacheMaintainerServiceStub
from services.cli.connection import channel_to, say_asked, service_address
from services.cli.embedded import alone, settings_from
from shared.client.credentials import bearer, channel
from shared.domain.errors import ConfigurationError, NotFoundError
from shared.runtime import rpc, telemetry
from shared.runtime.settings import Settings

TIMEOUT_S = 30.0
DataDir = Annotated[Path | None, typer.Option(help="Data directory of the Afterimage whose cache to use.")]
Target = Annotated[str | None, typer.Option(help="host:port of a running Afterimage, or of a cache maintainer.")]


def ask_maintainer(
    data_dir: Path | None,
    target: str | None,
    method: str,
    request: Any,
    question: str = "",
    *,
    timeout_s: float = TIMEOUT_S,
) -> Any:
    """Return the maintainer's reply. With a question, first print which maintainer is called and wait for a yes."""

    async def asked() -> Any:
        async with maintainer_stub(data_dir, target) as stub:
            if question:
                typer.confirm(question, abort=True)
            return await rpc.call(getattr(stub, method), request, timeout_s=timeout_s, metadata=bearer())

    return asyncio.run(asked())


def require_data_dir(settings: Settings, unserved: str = "") -> None:
    """Raise NotFoundError for an embedded catalog without a data directory, so that no command creates one.

    unserved: the beginning of the message when no server was found.
    """
    data = settings.data_dir.absolute()
    if not data.exists() and str(data) in settings.catalog_url:
        raise NotFoundError(f"{unserved}data_dir: there is no {data}; the first `afterimage generate` makes it")


@contextlib.asynccontextmanager
async def maintainer_stub(data_dir: Path | None, target: str | None) -> AsyncIterator[Any]:
    """Yield a stub of the running maintainer, or of one that is started for this call."""
    settings = settings_from(data_dir=data_dir)
    if address := await service_address("cache_maintainer", target, settings, data_dir):
        async with channel_to("cache_maintainer", address, settings) as running_there:
            yield CacheMaintainerServiceStub(running_there)
        return
    if not settings.catalog_url.startswith(
        "sqlite"
    ):  # a maintainer started here would lead, with this shell's settings
        raise ConfigurationError(
            "cache_maintainer_address: a catalog on a server has its cache maintainer in a process of its own; set "
            "AFTERIMAGE_CACHE_MAINTAINER_ADDRESS=host:port (`make stack-up` prints it), or --target"
        )
    nowhere = f"nothing listens on {settings.listen} (`afterimage up` starts it, --target names another), and "
    require_data_dir(settings, "" if data_dir else nowhere)
    from services.cache_maintainer.service import CacheMaintainerService
    from shared.service import running

    telemetry.configure_logging("error")
    say_asked(f"the cache in {settings.data_dir.absolute()} (nothing serves it now)")
    with alone(settings) as private:
        async with running([CacheMaintainerService()], private) as process, channel(process.address, "") as here:
            yield CacheMaintainerServiceStub(here)
