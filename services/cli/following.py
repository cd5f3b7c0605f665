"""Follow a request at the terminal: one bar of denoising steps per image, and the reasons to wait."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn

from services.cli.display.previews import PreviewBars
from services.cli.display.words import ProgressBars
from shared.client import Accepted, AsyncClient, Picture, Waiting
from shared.client import Progress as Step
from shared.domain.errors import AfterimageError, OverloadedError, StorageFullError, UnavailableError


async def draw(
    client: AsyncClient,
    prompt: str,
    fields: dict[str, Any],
    console: Console,
    *,
    n: int = 1,
    where: str = "",
    previews: Path | None = None,
) -> list[Picture]:
    """Generate `n` images, each with a progress bar of denoising steps that begins at the start step.

    An interrupt cancels the jobs, since no one else waits for them. Once the jobs are accepted, UnavailableError names
    the command that fetches an image later. where: the options that find the jobs. previews: the value of --previews.
    """
    bar = PreviewBars(
        previews,
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[at]}"),
        TimeElapsedColumn(),
        console=console,
    )
    jobs, pictures = dict[int, str](), list[Picture]()
    with bar:
        tasks = [bar.add_task("sending", total=None, at="") for _ in range(n)]
        try:
            waits, wanted = Waits(bar, tasks[0]), previews is not None
            async for event in client.generate_stream(prompt, n=n, previews=wanted, on_wait=waits, **fields):
                if isinstance(event, Picture):
                    pictures.append(event)
                    bar.update(tasks[event.index], **_ended(event))
                    continue
                jobs[event.index] = event.job_id
                if isinstance(event, Step) and event.preview:
                    bar.preview(event, n)
                bar.update(tasks[event.index], **_moved(event))
        except asyncio.CancelledError:
            for job_id in jobs.values():
                await client.cancel(job_id)
            raise
        except UnavailableError as error:
            if not jobs:
                raise
            first, *others = [jobs[index] for index in sorted(jobs)]
            known, its = (f"job {first} was", "its result") if not others else (f"{len(jobs)} jobs were", "each result")
            again = f"afterimage jobs show {first} -o FILE{where}" + "".join(f", … {other}" for other in others)
            raise UnavailableError(f"{error}; {known} accepted, fetch {its} later: {again}") from error
    if len(pictures) < n:
        raise AfterimageError("internal error: the stream ended without an image; please report it")
    return sorted(pictures, key=lambda one: one.index)


def _ended(picture: Picture) -> dict[str, Any]:
    steps = picture.plan.run_steps(picture.job.request.steps)
    return {"description": "done", "completed": steps, "total": steps, "at": f"{steps}/{steps}"}


class Waits:
    """Show why the client waits and when it tries again: in the bar, or without a bar once per reason on stderr."""

    def __init__(self, bar: ProgressBars, task: TaskID) -> None:
        self._bar, self._task = bar, task
        self._told: set[str] = set()

    def __call__(self, waiting: Waiting) -> None:
        why = _why(waiting.error)
        soon = f"{waiting.delay_s:.0f} s" if waiting.delay_s >= 1 else "a moment"
        said = f"{why}: trying again in {soon}"
        self._bar.update(self._task, description=said)
        if not self._bar.console.is_interactive and why not in self._told:
            self._told.add(why)
            typer.echo(f"{said} ({waiting.error})", err=True)


def _why(error: AfterimageError) -> str:
    """Return the reason in a few words, for a bar."""
    if isinstance(error, StorageFullError):
        return "the disk is full"
    # an error without a delay is gRPC's own, for example of a message that is too large
    if isinstance(error, OverloadedError) and error.retry_after_s is not None:
        return "no room for now"
    return "not available for now"


def _moved(event: Accepted | Step) -> dict[str, Any]:
    if isinstance(event, Step) and event.waits_again:
        return {"description": event.waits_again}
    if event.queue_position:
        return {"description": f"{event.queue_position} ahead in the queue"}
    if isinstance(event, Accepted):
        return {"description": "queued, next in turn"}
    at = f"{event.step}/{event.steps}"
    return {"description": "generating", "completed": event.step, "total": event.steps, "at": at}
