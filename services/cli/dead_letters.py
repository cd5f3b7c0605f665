"""`afterimage dead-letters`: list the tasks that failed too often, and send them again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from services.cli.connection import say_asked, server_of
from services.cli.display.tables import WIDE, Column, fitted
from services.cli.display.words import wide
from services.cli.embedded import settings_from
from shared.domain.errors import ConfigurationError, InvalidRequestError, NotFoundError
from shared.domain.messages import GenerateImage
from shared.runtime import telemetry
from shared.runtime.audit import local_actor, recorded
from shared.runtime.settings import Settings

if TYPE_CHECKING:
    from shared.bus import Bus, DeadLetter
    from shared.catalog import Catalog

PROCESS = "inprocess:"
EVERYTHING = 1_000_000
MOST = 10_000
"""Largest number of letters that one list shows."""

app = typer.Typer(
    no_args_is_help=True,
    help=(
        "List and replay the tasks that failed too often, on the broker that AFTERIMAGE_BUS_URL names.\n\n"
        "A task becomes a dead letter when its job failed for good, or when its workers crashed repeatedly."
    ),
)


@app.command("list")
def list_letters(limit: Annotated[int, typer.Option(min=1, max=MOST, help="Number of letters to show.")] = 100) -> None:
    """List dead letters, oldest first, with the reason of each.

    Example: AFTERIMAGE_BUS_URL=amqp://… afterimage dead-letters list
    """
    settings = settings_from()
    with recorded(settings.data_dir, actor=local_actor(), action="dead-letters list"):
        letters = asyncio.run(_read(settings, limit))
    out = wide()
    out.print(letters_table(letters, out.width) if letters else "no dead letters")
    if len(letters) == limit < MOST:
        out.print(f"perhaps more: afterimage dead-letters list --limit {min(10 * limit, MOST)}", highlight=False)


@app.command("replay")
def replay(
    letters: Annotated[
        list[str] | None, typer.Argument(help="Ids of letters or of their jobs, as `list` shows them.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every dead letter.")] = False,
) -> None:
    """Send dead letters to their lanes again. A failed job starts anew: its counts of failures and crashes become zero.

    With the bus of a single process (`inprocess:`), name failed jobs: that process sends them within `sweep_s` seconds,
    or at its next start.

    Examples: afterimage dead-letters replay 01jd… · afterimage dead-letters replay --all
    """
    if bool(letters) == everything:
        raise InvalidRequestError("replay", "name letters or their jobs, or give --all")
    settings = settings_from()
    check_catalog(settings)
    target = " ".join(letters or ["all"])
    with recorded(settings.data_dir, actor=local_actor(), action="dead-letters replay", target=target) as outcome:
        sent, asked = asyncio.run(_replay(settings, letters or []))
        outcome.said = f"{sent} of {asked} replayed"
    if letters and not sent:
        named = ", ".join(letters)
        raise NotFoundError(f"letters: none of these is the id of a dead letter or of its job: {named}; see `list`")
    gone = f", {asked - sent} were not found" if sent < asked else ""
    wide().print(f"{sent} of {asked} replayed{gone}")


def letters_table(letters: Sequence[DeadLetter], width: int = WIDE) -> Table:
    """Return a table with one row per letter, and its whole id."""
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
    """Return the id of the letter's job; empty when this version does not know the letter's message."""
    with contextlib.suppress(KeyError, ValueError):
        if isinstance(letter.message, GenerateImage):
            return letter.message.job_id
    return ""


@contextlib.asynccontextmanager
async def _bus(settings: Settings) -> AsyncIterator[Bus]:
    from shared.bus import open_bus

    telemetry.configure_logging("error")
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # logs at every try the error that we print once
    if settings.bus_url.startswith(PROCESS):
        raise ConfigurationError(
            "bus_url: inprocess: is in the memory of the serving process, and its dead letters end with that process. "
            "List failed jobs with `afterimage jobs list --state failed` and replay them by their ids, or set "
            "AFTERIMAGE_BUS_URL to a broker"
        )
    say_asked(f"the broker at {server_of(settings.bus_url)}")
    bus = await open_bus(settings.bus_url)
    async with contextlib.AsyncExitStack() as opened:
        opened.push_async_callback(bus.close)
        yield bus


def check_catalog(settings: Settings) -> None:
    """Raise NotFoundError for a missing SQLite file, so that a wrong data directory gets no new, empty catalog."""
    from shared.catalog import place_of

    place = place_of(settings.catalog_url)
    if settings.catalog_url.startswith("sqlite") and not Path(place).exists():
        raise NotFoundError(f"catalog_url: there is no catalog at {place}; set AFTERIMAGE_DATA_DIR")


@contextlib.asynccontextmanager
async def opened_catalog(settings: Settings) -> AsyncIterator[Catalog]:
    from shared.catalog import open_catalog

    catalog = await open_catalog(settings.catalog_url)
    async with contextlib.AsyncExitStack() as opened:
        opened.push_async_callback(catalog.close)
        yield catalog


async def _read(settings: Settings, limit: int) -> list[DeadLetter]:
    async with _bus(settings) as bus:
        return await bus.dead_letters(limit)


async def _replay(settings: Settings, ids: Sequence[str]) -> tuple[int, int]:
    """Return the numbers of letters sent and asked for.

    The rows are reopened first: a worker acknowledges the task of a failed job without running it.
    """
    if ids and settings.bus_url.startswith(PROCESS):
        async with opened_catalog(settings) as catalog:  # the sweeper sends queued rows without a confirmed task
            return sum([await catalog.jobs.reopen(job_id) for job_id in ids]), len(ids)
    async with _bus(settings) as bus, opened_catalog(settings) as catalog:
        every = await bus.dead_letters(EVERYTHING)
        letters = [letter for letter in every if not ids or {letter.id, _job_of(letter)} & set(ids)]
        jobs = [job_id for letter in letters if (job_id := _job_of(letter))]
        for job_id in jobs:
            await catalog.jobs.reopen(job_id)
        # the claim confirms a reopened row: another job may take the letter's task, and then the
        # sweeper sends the row's own
        return await bus.replay([letter.id for letter in letters]), len(ids) or len(letters)
