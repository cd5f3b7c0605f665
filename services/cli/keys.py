"""`afterimage keys`: create, list, rotate and revoke API keys, in the catalog that AFTERIMAGE_CATALOG_URL names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from services.cli.dead_letters import check_catalog, opened_catalog
from services.cli.display.tables import Column, fitted
from services.cli.display.words import wide
from services.cli.embedded import settings_from
from shared.domain.errors import InvalidRequestError
from shared.domain.identity import ANONYMOUS, ApiKey, Role, issued, principal_of, rate_of
from shared.runtime.audit import local_actor, recorded

if TYPE_CHECKING:
    from shared.catalog import Catalog

T = TypeVar("T")
DAY_S = 86400.0
MOST_DAYS, MOST_OVERLAP_S = 36_500.0, 365 * DAY_S
KeyId = Annotated[str, typer.Argument(help="Id of the key, as `list` shows it.")]

app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Create, list, rotate and revoke API keys, in the catalog that AFTERIMAGE_DATA_DIR or AFTERIMAGE_CATALOG_URL "
        "names.\n\nRunning services read the keys every two seconds."
    ),
)


@app.command("create")
def create(
    subject: Annotated[str, typer.Argument(help="Whose key it is: a person or a program.")],
    tenant: Annotated[str, typer.Option(help="Tenant whose cache and jobs the key uses.")] = "default",
    role: Annotated[
        list[str] | None, typer.Option(help="user, publisher, tenant-admin or operator; give it again for several.")
    ] = None,
    days: Annotated[float | None, typer.Option(min=0.0, help="Days until the key expires; without: never.")] = None,
    rate: Annotated[
        str | None, typer.Option(help="Calls that each gateway takes, such as 2/s, 30/min or 500/h; without: no limit.")
    ] = None,
    burst: Annotated[int | None, typer.Option(help="Calls at once. Default: those of ten seconds, at least 1.")] = None,
) -> None:
    """Create a key and print it once: the catalog has only its sha256.

    Examples: afterimage keys create alice --tenant acme --days 90 · afterimage keys create ops --role operator ·
    afterimage keys create bot --rate 2/s --burst 20
    """
    if burst is not None and rate is None:
        raise InvalidRequestError("burst", "needs rate", burst)
    if days == 0:
        raise InvalidRequestError("days", "must be above 0: the key would never work", days)
    if role and {*role} == {Role.PUBLISHER}:
        raise InvalidRequestError("role", "publisher needs another one beside it, such as user", "publisher")
    limit = None if rate is None else rate_of(rate, burst)
    key, text = issued(principal_of(tenant, subject, role or [Role.USER]), rate=limit)
    lifetime_s = None if days is None else _seconds("days", days, MOST_DAYS) * DAY_S
    _in_catalog(lambda catalog: catalog.keys.add(key, lifetime_s), "create", f"{key.id} {tenant}/{subject}")
    typer.echo(text)


@app.command("list")
def list_keys() -> None:
    """List every key, oldest first, without its secret.

    Example: afterimage keys list
    """
    keys = _in_catalog(lambda catalog: catalog.keys.all(), "list")
    columns = (
        Column("key"),
        Column("tenant"),
        Column("subject"),
        Column("roles", leave=1),
        Column("rate", leave=3),
        Column("created", leave=2),
        Column("ends"),
    )
    out = wide()
    out.print(fitted(columns, [_row(key) for key in keys], out.width) if keys else "no keys")


def _row(key: ApiKey) -> tuple[str, ...]:
    who = key.principal
    ends = f"revoked {_day(key.revoked_at)}" if key.revoked_at else _day(key.expires_at) if key.expires_at else "never"
    roles, rate = ", ".join(sorted(who.roles)), str(key.rate or "")
    return key.id, who.tenant, who.subject, roles, rate, _day(key.created_at), ends


def _day(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")


@app.command("rotate")
def rotate(
    key_id: KeyId,
    overlap_s: Annotated[
        float, typer.Option("--overlap-s", min=0.0, help="Seconds that the old key still works.")
    ] = DAY_S,
) -> None:
    """Print a new key of the same tenant, subject, roles, rate and lifetime; the old key ends after the overlap.

    A key is rotated once: where its new text got lost, revoke the new key and create another one.

    Example: afterimage keys rotate 3f9c… --overlap-s 3600
    """
    key, text = issued(ANONYMOUS)
    _seconds("overlap-s", overlap_s, MOST_OVERLAP_S)
    target = f"{key_id} to {key.id}"
    _in_catalog(lambda catalog: catalog.keys.rotate(key_id, key.id, key.digest, overlap_s), "rotate", target)
    typer.echo(text)


@app.command("revoke")
def revoke(key_id: KeyId) -> None:
    """End a key: running services refuse it within five seconds.

    Example: afterimage keys revoke 3f9c…
    """
    _in_catalog(lambda catalog: catalog.keys.revoke(key_id), "revoke", key_id)
    typer.echo(f"{key_id} is revoked")


def _seconds(field: str, value: float, most: float) -> float:
    """Return a duration of an option. Raises InvalidRequestError for one that is no number, or too long."""
    if not 0 <= value <= most:  # neither nan nor inf is
        raise InvalidRequestError(field, f"must be between 0 and {most:g}", value)
    return value


def _in_catalog(work: Callable[[Catalog], Awaitable[T]], action: str, target: str = "") -> T:
    """Do the work in the catalog. The action goes into the audit log, also when it fails."""
    settings = settings_from()
    check_catalog(settings)

    async def done() -> T:
        async with opened_catalog(settings) as catalog:
            return await work(catalog)

    with recorded(settings.data_dir, actor=local_actor(), action=f"keys {action}", target=target):
        return asyncio.run(done())
