"""`afterimage cache`: show and purge the cache, collect unnamed blobs, repair the index."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from protos import cache_maintainer_pb2 as pb
from services.cli.connection import options, say_asked, server_of
from services.cli.display.tables import WIDE, Column, fitted
from services.cli.display.words import ProgressBars, counted, sized, wide
from services.cli.embedded import settings_from
from services.cli.maintainer import TIMEOUT_S, DataDir, Target, ask_maintainer, maintainer_stub, require_data_dir
from services.cli.quality import quality
from shared.client.credentials import bearer
from shared.domain.errors import ConfigurationError, InvalidRequestError
from shared.runtime import rpc, telemetry
from shared.runtime.audit import local_actor, recorded
from shared.runtime.settings import Settings

if TYPE_CHECKING:  # the catalog's imports take a second that --help need not wait for
    from shared.index.rebuild import Repaired

COLLECT_S = 600.0
"""Time limit in seconds of one pass over the whole blob store."""

app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Show, purge and repair the cache.\n\n"
        "The commands call the same Afterimage as `generate`: the process that works in the data directory or listens "
        "on AFTERIMAGE_LISTEN. They reach its cache through a private socket, never through the public port. When no "
        "process runs, the command opens the cache itself. In a cluster, the commands call the cache maintainer that "
        "AFTERIMAGE_CACHE_MAINTAINER_ADDRESS or --target names."
    ),
)


@app.command("stats")
def stats(data_dir: DataDir = None, target: Target = None) -> None:
    """Show the number, size and uses of cached latents by start step K, and of cached images.

    Examples: afterimage cache stats · afterimage cache stats --target 10.0.0.7:50051
    """
    reply = ask_maintainer(data_dir, target, "Stats", pb.StatsRequest())
    out = wide()
    share = f" ({reply.bytes / reply.max_bytes:.0%} of {sized(reply.max_bytes)})" if reply.max_bytes else ""
    kept = f"{counted(reply.entries, 'entry')}, {counted(reply.states, 'state')}, {sized(reply.bytes)}"
    out.print(f"{kept}{share}, policy {reply.policy}")
    if reply.picture_policy != "off":
        room = f" ({reply.picture_bytes / reply.max_picture_bytes:.0%} of {sized(reply.max_picture_bytes)})"
        kept = f"{counted(reply.pictures, 'image')} of {reply.max_pictures}, {sized(reply.picture_bytes)}"
        out.print(f"{kept}{room if reply.max_picture_bytes else ''}, policy {reply.picture_policy}")
    evicted = f"{reply.evicted} evicted, {reply.holes} of them from entries that keep other states"
    out.print(f"since start: {counted(reply.inserted, 'state')} inserted, {evicted}")
    if reply.states_by_step:
        table = Table("K", "states", "uses")
        for step in sorted(reply.states_by_step):
            table.add_row(str(step), str(reply.states_by_step[step]), str(reply.uses_by_step[step]))
        out.print(table)
        out.print("K counts steps of each image's own T", style="dim")


app.command("quality")(quality)


@app.command("inspect")
def inspect(
    entry_id: Annotated[
        str, typer.Argument(help="Id of one entry. Default: a page of all entries, newest first.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of entries to show.")] = 20,
    after: Annotated[str, typer.Option(help="Token of the next page, printed below the page before.")] = "",
    data_dir: DataDir = None,
    target: Target = None,
) -> None:
    """List the entries that requests can start from, and the states that each entry keeps.

    Example: afterimage cache inspect --limit 5
    """
    entries, after = _entries(data_dir, target, entry_id, limit, after)
    out = wide()
    out.print(entries_table(entries, out.width))
    if after:
        same = options(limit=limit, data_dir=data_dir, target=target)
        out.print(Text(f"more: afterimage cache inspect --after {after}{same}"))


def entries_table(entries: Sequence[pb.Entry], width: int = WIDE) -> Table:
    """Return a table with one row per entry, and its whole id."""
    columns = (
        Column("entry"),
        Column("created", leave=5),
        Column("model", leave=3),
        Column("size", leave=4),
        Column("states after step (uses)", least=12),
        Column("image (uses)", leave=2),
        Column("prompt", least=12, leave=1),
    )
    rows = [
        (
            entry.id,
            datetime.fromtimestamp(entry.created_at).strftime("%m-%d %H:%M:%S"),
            entry.model,
            f"{entry.width}x{entry.height}",
            " ".join([*(f"{state.step}({state.uses})" for state in entry.states), f"of {entry.steps}"])
            if entry.states
            else "–",
            f"yes({entry.picture.uses})" if entry.HasField("picture") else "–",
            Text(entry.prompt),
        )
        for entry in entries
    ]
    return fitted(columns, rows, width)


def _entries(
    data_dir: Path | None, target: str | None, entry_id: str, limit: int, after: str
) -> tuple[list[pb.Entry], str]:
    """Return `limit` entries, read from as many of the maintainer's pages as needed, and the token of the next page."""

    async def read() -> tuple[list[pb.Entry], str]:
        entries: list[pb.Entry] = []
        token = after
        async with maintainer_stub(data_dir, target) as stub:
            while True:
                asked = pb.InspectRequest(entry_id=entry_id, page_size=limit - len(entries), page_token=token)
                reply = await rpc.call(stub.Inspect, asked, timeout_s=TIMEOUT_S, metadata=bearer())
                entries += reply.entries
                token = reply.next_page_token
                if not token or len(entries) >= limit:
                    return entries, token

    return asyncio.run(read())


@app.command("purge")
def purge(
    entry: Annotated[str | None, typer.Option(help="Only this entry.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Everything of this tenant.")] = None,
    model: Annotated[str | None, typer.Option(help="Everything that this model generated.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="The whole cache.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Purge without a question.")] = False,
    data_dir: DataDir = None,
    target: Target = None,
) -> None:
    """Remove entries from the cache: their latents are deleted, and no request starts from their images again.

    The images stay with their jobs.

    Examples: afterimage cache purge --model large · afterimage cache purge --all --yes
    """
    chosen: dict[str, Any] = {
        name: value
        for name, value in {"entry_id": entry, "tenant": tenant, "model": model, "everything": everything}.items()
        if value
    }
    if len(chosen) != 1:
        raise InvalidRequestError("purge", "give exactly one of --entry, --tenant, --model and --all")
    ((name, value),) = chosen.items()
    what = "the whole cache" if everything else f"{name.removesuffix('_id')} {value} from the cache"
    question = "" if yes else f"Purge {what}? Images that belong to jobs stay."
    reply = ask_maintainer(data_dir, target, "Purge", pb.PurgeRequest(**chosen), question)
    wide().print(f"purged {counted(reply.entries, 'entry')}, {counted(reply.states, 'state')}, {sized(reply.bytes)}")


@app.command("collect")
def collect(
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Delete the blobs that are due, even if they are many.")
    ] = False,
    data_dir: DataDir = None,
    target: Target = None,
) -> None:
    """Count the blobs that no row of the catalog names; with --yes, delete those whose quarantine is over.

    The cache maintainer runs the same pass every `collect_s` seconds. A pass that would delete more than 100 blobs and
    more than a tenth of the store waits for --yes.

    Examples: afterimage cache collect · afterimage cache collect --yes
    """
    found = ask_maintainer(data_dir, target, "Collect", pb.CollectRequest(confirmed=yes), timeout_s=COLLECT_S)
    out = wide()
    if found.held in ("mismatch", "unadopted"):
        raise ConfigurationError(found.said)
    days = f"{found.quarantine_s / 86_400:g} days"
    out.print(
        f"{counted(found.blobs, 'blob')} in the store; no row names {found.unnamed} of them: these are in quarantine"
    )
    if yes:
        out.print(f"deleted {counted(found.deleted, 'blob')}: due, or left over from purged entries")
        return
    out.print(f"{found.due} have been in quarantine for {days}: the next pass deletes them, this one deleted nothing")
    if found.erased:
        out.print(f"{found.erased} are left over from purged entries: the next pass deletes them without quarantine")
    if found.held:
        out.print(Text(f"the passes wait: {found.said}"))


@app.command("adopt")
def adopt(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Adopt without a question.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Pair the blob store with this catalog, whatever each of them was paired with before.

    Use this command when a start refuses the pair, or collects nothing, although catalog and store belong together.
    That happens after the catalog was lost or restored, or the store was copied. Blobs that this catalog does not name
    then go through the quarantine.

    Example: AFTERIMAGE_CATALOG_URL=… AFTERIMAGE_BLOBS_URL=… afterimage cache adopt --yes
    """
    asyncio.run(_adopt(settings_from(data_dir=data_dir), yes))


async def _adopt(settings: Settings, yes: bool) -> None:
    from shared.catalog import open_catalog
    from shared.runtime.datadir import lock_data_dir
    from shared.service.backends import blobs_of
    from shared.service.pairing import adopt as adopt_store
    from shared.service.pairing import compare, places_of

    require_data_dir(settings)
    at = places_of(settings)
    async with contextlib.AsyncExitStack() as opened:
        opened.enter_context(
            recorded(settings.data_dir, actor=local_actor(), action="cache adopt", target=f"store at {at.store}")
        )
        if settings.catalog_url.startswith("sqlite"):
            opened.callback(lock_data_dir(settings.data_dir).release)
        catalog = await open_catalog(settings.catalog_url)
        opened.push_async_callback(catalog.close)
        blobs = await blobs_of(settings)
        opened.push_async_callback(blobs.close)
        pairing = await compare(catalog, blobs, at)
        if pairing.state != "paired":
            if not yes:
                wide().print(Text(pairing.said))
                typer.confirm(f"Pair the store at {at.store} with the catalog at {at.catalog}?", abort=True)
            await adopt_store(catalog, blobs, at)
        wide().print(Text(f"the store at {at.store} belongs to the catalog at {at.catalog}"))


@app.command("rebuild-index")
def rebuild_index(data_dir: DataDir = None) -> None:
    """Repair the index while both are in use: add the catalog's missing entries, remove entries that are gone.

    Requests keep finding hits during the repair. Use this command when an index server lost its data, was set up anew,
    or holds the collection of another version of Afterimage.

    Example: AFTERIMAGE_INDEX_URL=… AFTERIMAGE_CATALOG_URL=… afterimage cache rebuild-index
    """
    telemetry.configure_logging("error")
    settings, out = settings_from(data_dir=data_dir), wide()
    start = time.monotonic()
    found = asyncio.run(_repaired(settings, out))
    took = time.monotonic() - start
    out.print(f"{counted(found.kept, 'entry')} kept, {found.added} added, {found.removed} removed in {took:.1f} s")


async def _repaired(settings: Settings, console: Console) -> Repaired:
    from shared.catalog import open_catalog
    from shared.index.rebuild import repair_index
    from shared.service.backends import index_of

    bar = ProgressBars(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
    )
    async with contextlib.AsyncExitStack() as opened:
        index = await index_of(settings)
        opened.push_async_callback(index.close)
        if index.process_local:
            raise ConfigurationError(
                f"index_url: {settings.index_url} is in the memory of the serving process, which fills it from the "
                "catalog at its start: restart that process instead, or set AFTERIMAGE_INDEX_URL to an index server"
            )
        say_asked(f"the index at {server_of(settings.index_url)}")
        catalog = await open_catalog(settings.catalog_url)
        opened.push_async_callback(catalog.close)
        opened.enter_context(bar)
        task = bar.add_task("comparing", total=await index.count() + (await catalog.entries.totals()).entries)
        return await repair_index(catalog, index, lambda checked: bar.advance(task, checked))
