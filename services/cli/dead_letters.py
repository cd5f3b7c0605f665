"""`afterimage dead-letters`: tasks that nobody tries again by itself, and trying them again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from services.cli.connection import say_asked, server_of
from services.cli.embedded import settings_from
from services.cli.tables import WIDE, Column, fitted
from services.cli.words import wide
from shared import telemetry
from shared.errors import ConfigurationError, InvalidRequestError, NotFoundError
from shared.messages import GenerateImage
from shared.settings import Settings

if TYPE_CHECKING:
    from shared.bus import Bus, DeadLetter

EVERYTHING = 1_000_000
MOST = 10_000
"""Letters that one list shows."""

app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Look at the tasks that failed too often (AFTERIMAGE_BUS_URL), and replay them.\n\n"
        "A task is buried when its job failed for good, or when its workers died on it again and again."
    ),
)


@app.command("list")
def list_letters(limit: Annotated[int, typer.Option(min=1, max=MOST, help="How many, oldest first.")] = 100) -> None:
    """List dead letters, oldest first, with the reason of each.

    Example: AFTERIMAGE_BUS_URL=amqp://… afterimage dead-letters list
    """
    letters = asyncio.run(_read(settings_from(), limit))
    out = wide()
    out.print(letters_table(letters, out.width) if letters else "no dead letters")
    if len(letters) == limit < MOST:
        out.print(f"perhaps more: afterimage dead-letters list --limit {min(10 * limit, MOST)}", highlight=False)


@app.command("replay")
def replay(
    letters: Annotated[list[str] | None, typer.Argument(help="Letters, as `list` shows them.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every dead letter there is.")] = False,
) -> None:
    """Send dead letters to their lanes again; a job that had failed starts anew, its failures forgotten.

    Examples: afterimage dead-letters replay 01jd… · afterimage dead-letters replay --all
    """
    if bool(letters) == everything:
        raise InvalidRequestError("replay", "name letters, or say --all")
    sent, asked = asyncio.run(_replay(settings_from(), letters or []))
    if letters and not sent:
        raise NotFoundError(f"letters: none of these is among the dead letters (any more): {', '.join(letters)}")
    gone = f", {asked - sent} were not there (any more)" if sent < asked else ""
    wide().print(f"{sent} of {asked} replayed{gone}")


def letters_table(letters: Sequence[DeadLetter], width: int = WIDE) -> Table:
    """One row a letter, with its whole id."""
    columns = (
        Column("letter"),
        Column("buried", leave=3),
        Column("lane", leave=2),
        Column("job", leave=1),
        Column("returned", leave=4, right=True),
        Column("reason", least=16),
    )
    rows = [
        (
            letter.id,
            datetime.fromtimestamp(letter.at).strftime("%m-%d %H:%M:%S"),
            letter.lane,
            _job_of(letter),
            str(letter.returns),
            Text(letter.reason),
        )
        for letter in letters
    ]
    return fitted(columns, rows, width)


def _job_of(letter: DeadLetter) -> str:
    """Empty when this version does not know such a task."""
    with contextlib.suppress(KeyError, ValueError):
        if isinstance(letter.message, GenerateImage):
            return letter.message.job_id
    return ""


@contextlib.asynccontextmanager
async def _bus(settings: Settings) -> AsyncIterator[Bus]:
    from shared.bus import open_bus

    telemetry.configure_logging("error")
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # says at every try what we say once
    if settings.bus_url.startswith("inprocess:"):
        raise ConfigurationError(
            "bus_url: inprocess: lives in the process that serves, and its dead letters end with it. See what failed "
            "with `afterimage jobs list --state failed`, or set AFTERIMAGE_BUS_URL to the broker that is meant"
        )
    say_asked(f"the broker at {server_of(settings.bus_url)}")
    bus = await open_bus(settings.bus_url)
    async with contextlib.AsyncExitStack() as opened:
        opened.push_async_callback(bus.close)
        yield bus


async def _read(settings: Settings, limit: int) -> list[DeadLetter]:
    async with _bus(settings) as bus:
        return await bus.dead_letters(limit)


async def _replay(settings: Settings, ids: Sequence[str]) -> tuple[int, int]:
    """(sent, asked for). First the rows: a task whose job has failed would be acknowledged and not done."""
    from shared.catalog import open_catalog

    async with _bus(settings) as bus, contextlib.AsyncExitStack() as opened:
        letters = [letter for letter in await bus.dead_letters(EVERYTHING) if not ids or letter.id in ids]
        catalog = await open_catalog(settings.catalog_url)
        opened.push_async_callback(catalog.close)
        jobs = [job_id for letter in letters if (job_id := _job_of(letter))]
        reopened = [job_id for job_id in jobs if await catalog.jobs.reopen(job_id)]
        sent = await bus.replay([letter.id for letter in letters])
        await catalog.jobs.confirm(reopened)
        return sent, len(ids) or len(letters)
