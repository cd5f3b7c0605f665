"""`afterimage erase`: erase a job, a user's data or a tenant's from all stores."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from protos import cache_maintainer_pb2, gateway_pb2
from protos.gateway_pb2_grpc import GatewayServiceStub
from services.cli.connection import address_of, must_be_of, say_asked
from services.cli.display.words import sized, wide
from services.cli.embedded import settings_from
from services.cli.maintainer import ask_maintainer
from shared.client.credentials import bearer, channel
from shared.domain.errors import InvalidRequestError, UnavailableError
from shared.runtime import rpc

TIMEOUT_S = 600.0
"""Time limit of one erasure in seconds: of a whole tenant it reads every plan."""


def erase(
    job: Annotated[str | None, typer.Option(help="Only this job.")] = None,
    user: Annotated[
        str | None,
        typer.Option(
            help="All of this user: the subject of a key, or `subject/label`; and the same label without a key."
        ),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            help="Tenant of the user; without --user, all of the tenant. [default: the key's where a gateway is asked, "
            "else default]"
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Erase without a question.")] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Data directory of the Afterimage that has the data.")] = None,
    target: Annotated[
        str | None, typer.Option(help="host:port of a gateway, or without a key of a cache maintainer.")
    ] = None,
) -> None:
    """Erase jobs with their prompts, images and cache entries from all stores, at once and for good.

    With AFTERIMAGE_API_KEY the command asks the gateway, which erases what the key may: jobs of its own, the tenant's
    with the role tenant-admin, all with the role operator. Without a key, or where
    AFTERIMAGE_CACHE_MAINTAINER_ADDRESS is set, it asks the cache maintainer, as `cache` does. Backups keep what they
    have.

    Examples: afterimage erase --job 01jd… · afterimage erase --user alice --tenant acme
    """
    if bool(job) == bool(user or tenant):
        raise InvalidRequestError("erase", "give --job, --user with or without --tenant, or --tenant")
    chosen: dict[str, Any] = {"job_id": job} if job else {"user": user} if user else {"whole_tenant": True}
    by_key = bool(bearer()) and not settings_from(data_dir=data_dir).cache_maintainer_address
    of = f"tenant {tenant}" if tenant else "the key's tenant" if by_key else "tenant default"
    named = f"job {job}" if job else f"user {user} of {of}" if user else of
    question = "" if yes else f"Erase {named}? Prompts, images and cache entries go from every store, for good."
    if by_key:
        found = asyncio.run(_ask_gateway(chosen | {"tenant": tenant or ""}, data_dir, target, question))
    else:
        asked = cache_maintainer_pb2.EraseRequest(**chosen, tenant="" if job else tenant or "default")
        found = ask_maintainer(data_dir, target, "Erase", asked, question, timeout_s=TIMEOUT_S).erasure
    out = wide()
    if found.removed:
        table = Table("erased", "number", "size")
        for one in found.removed:
            table.add_row(one.kind, str(one.count), sized(one.bytes) if one.bytes else "")
        out.print(table)
    else:
        out.print(f"nothing was left of {named}")
    if found.left:
        raise UnavailableError(f"not all is erased ({'; '.join(found.left)}); run the command again")


async def _ask_gateway(chosen: dict[str, Any], data_dir: Path | None, target: str | None, question: str) -> Any:
    address = address_of(target, settings_from(data_dir=data_dir))
    must_be_of(data_dir, target, address)
    say_asked(address)
    if question:
        typer.confirm(question, abort=True)
    async with channel(address) as to_gateway:
        asked = gateway_pb2.EraseRequest(**chosen)
        stub: Any = GatewayServiceStub(to_gateway)
        return (await rpc.call(stub.Erase, asked, timeout_s=TIMEOUT_S, metadata=bearer())).erasure
