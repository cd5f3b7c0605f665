"""`afterimage credentials`: one credential for each service in the four servers, with the rights that it needs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from services.cli.embedded import settings_from
from shared.domain.errors import ConfigurationError, InvalidRequestError
from shared.runtime.audit import local_actor, recorded
from shared.runtime.datadir import OWNER_FOLDER, private_folder, write_private
from shared.runtime.settings import Settings

if TYPE_CHECKING:
    from shared.service.rights import Rights

_URLS = ("catalog_url", "bus_url", "blobs_url", "index_url")


def credentials(
    folder: Annotated[Path, typer.Argument(help="Where to write SERVICE.env, a file of variables for each service.")],
    rabbitmq_api: Annotated[
        str, typer.Option(help="RabbitMQ's management API, as in http://host:15672. Default: port 15672 of bus_url.")
    ] = "",
    prefix: Annotated[
        str, typer.Option(help="Beginning of the users' names; another one for a second Afterimage on these servers.")
    ] = "afterimage",
    rotate: Annotated[bool, typer.Option("--rotate", help="Make new passwords, which end the old ones now.")] = False,
) -> None:
    """Make a user for each service in PostgreSQL, RabbitMQ, MinIO and Weaviate, with the rights that it needs.

    The four AFTERIMAGE_…_URL variables name the administrators, and the catalog is migrated first. Start each service
    with the variables of its own file instead. Run it again before an upgrade's first service starts: passwords in the
    folder stay as they are. After --rotate, restart the services.

    Example: afterimage credentials /etc/afterimage/credentials
    """
    settings = settings_from()
    if settings.catalog_url.startswith("sqlite"):
        raise ConfigurationError("catalog_url: credentials are for the four servers; one process has a private folder")
    api, secure = rabbitmq_api or _api_of(settings.bus_url), urlsplit(settings.bus_url).scheme == "amqps"
    if not api.startswith("https://" if secure else ("http://", "https://")):
        rule = "must begin with https://, because bus_url has TLS" if secure else "must begin with http:// or https://"
        raise InvalidRequestError("rabbitmq_api", rule, api)
    action = "credentials rotate" if rotate else "credentials"
    with recorded(settings.data_dir, actor=local_actor(), action=action, target=str(folder)):
        made = asyncio.run(_made(settings, folder, api, prefix, rotate))
    typer.echo(f"wrote {', '.join(made)} to {folder}")


def _api_of(bus_url: str) -> str:
    host = urlsplit(bus_url).hostname or ""
    return f"http://[{host}]:15672" if ":" in host else f"http://{host}:15672"


async def _made(settings: Settings, folder: Path, api: str, prefix: str, rotate: bool) -> list[str]:
    """Write the files; return their names."""
    from shared.service.backends import open_backends
    from shared.service.rights import RIGHTS

    # makes what services without the rights to do so expect: tables, bucket, pairing and exchange
    await (await open_backends(settings)).close()
    private_folder(folder, OWNER_FOLDER)
    for service, rights in RIGHTS.items():
        file = folder / f"{service}.env"
        found = {name: _bare(getattr(settings, name)) for name in _URLS}
        if rights is not None:
            before = {} if rotate else _passwords(file)
            found |= await _granted(settings, f"{prefix}_{service}", rights, api, before)
        lines = [f"AFTERIMAGE_{name.upper()}={url}\n" for name, url in found.items()]
        write_private(file, "".join(lines))
    return [f"{service}.env" for service in RIGHTS]


def _passwords(file: Path) -> dict[str, str]:
    """Return the passwords of a file of an earlier run, by setting; empty without one."""
    if not file.exists():
        return {}
    urls = dict(line.split("=", 1) for line in file.read_text().splitlines())
    return {name: urlsplit(urls.get(f"AFTERIMAGE_{name.upper()}", "")).password or "" for name in _URLS}


def _bare(url: str) -> str:
    """Return the address alone, for services that do not use the server: without it, they would work embedded."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


async def _granted(
    settings: Settings, user: str, rights: Rights, api: str, before: Mapping[str, str]
) -> dict[str, str]:
    """Make one service's users; return its URLs by setting. before: passwords that they keep."""
    from shared.blobs import users as blobs
    from shared.bus.rabbitmq import users as bus
    from shared.catalog import roles as catalog
    from shared.index.weaviate import users as index
    from shared.service.pairing import SEAL_KEY

    password = before.get("catalog_url") or secrets.token_hex(24)
    kinds = [one.__name__ for one in rights.publishes]
    found = {
        "catalog_url": await catalog.grant(settings.catalog_url, user, password, rights.tables),
        "bus_url": await bus.grant(settings.bus_url, api, user, password, rights.queues, kinds),
    }
    if rights.reads:
        actions = {"GetObject": (*rights.reads, SEAL_KEY), "PutObject": rights.writes, "DeleteObject": rights.deletes}
        given = settings.blobs_url, settings.blobs_access_key, settings.blobs_secret_key.get_secret_value()
        found["blobs_url"] = await blobs.grant(*given, user, password, actions)
    if rights.index:
        found["index_url"] = await index.grant(settings.index_url, user, before.get("index_url", ""), rights.index)
    return found
