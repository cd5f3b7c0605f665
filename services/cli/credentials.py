"""`afterimage credentials`: one credential for each service in the four servers, with the rights that it needs."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from services.cli.embedded import settings_from
from shared.domain.errors import ConfigurationError
from shared.runtime.datadir import OWNER_FOLDER, private_folder, write_private
from shared.runtime.settings import Settings
from shared.service.backends import open_backends
from shared.service.pairing import SEAL_KEY
from shared.service.rights import RIGHTS, Rights

_URLS = ("catalog_url", "bus_url", "blobs_url", "index_url")
PREFIX = "afterimage_"
"""Users and roles are `afterimage_gateway`, …"""


def credentials(
    folder: Annotated[Path, typer.Argument(help="Where to write SERVICE.env, a file of variables for each service.")],
    rabbitmq_api: Annotated[
        str, typer.Option(help="RabbitMQ's management API, as in http://host:15672. Default: port 15672 of bus_url.")
    ] = "",
) -> None:
    """Make a user for each service in PostgreSQL, RabbitMQ, MinIO and Weaviate, with the rights that it needs.

    The four AFTERIMAGE_…_URL variables name the administrators, and the catalog is migrated first. Start each service
    with the variables of its own file instead. Run it again after an upgrade, or to change the passwords: then restart
    the services.

    Example: afterimage credentials /etc/afterimage/credentials
    """
    settings = settings_from()
    if settings.catalog_url.startswith("sqlite"):
        raise ConfigurationError("catalog_url: credentials are for the four servers; one process has a private folder")
    asyncio.run(_made(settings, folder, rabbitmq_api))
    typer.echo(f"wrote {', '.join(f'{service}.env' for service in RIGHTS)} to {folder}")


async def _made(settings: Settings, folder: Path, api: str) -> None:
    # makes what services without the rights to do so expect: tables, bucket, pairing and exchange
    await (await open_backends(settings)).close()
    private_folder(folder, OWNER_FOLDER)
    for service, rights in RIGHTS.items():
        found = {name: _bare(getattr(settings, name)) for name in _URLS}
        if rights is not None:
            found |= await _granted(settings, PREFIX + service, rights, api)
        lines = [f"AFTERIMAGE_{name.upper()}={url}\n" for name, url in found.items()]
        write_private(folder / f"{service}.env", "".join(lines))


def _bare(url: str) -> str:
    """Return the address alone, for services that do not use the server: without it, they would work embedded."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


async def _granted(settings: Settings, user: str, rights: Rights, api: str) -> dict[str, str]:
    """Make one service's users; return its URLs by setting."""
    from shared.blobs import users as blobs
    from shared.bus.rabbitmq import users as bus
    from shared.catalog import roles as catalog
    from shared.index.weaviate import users as index

    password = secrets.token_hex(24)
    api = api or f"http://{urlsplit(settings.bus_url).hostname}:15672"
    told = [one.__name__ for one in rights.tells]
    found = {
        "catalog_url": await catalog.grant(settings.catalog_url, user, password, rights.tables),
        "bus_url": await bus.grant(settings.bus_url, api, user, password, rights.queues, told),
    }
    if rights.reads:
        actions = {"GetObject": (*rights.reads, SEAL_KEY), "PutObject": rights.writes, "DeleteObject": rights.deletes}
        given = settings.blobs_url, settings.blobs_access_key, settings.blobs_secret_key.get_secret_value()
        found["blobs_url"] = await blobs.grant(*given, user, password, actions)
    if rights.index:
        found["index_url"] = await index.grant(settings.index_url, user, rights.index)
    return found
