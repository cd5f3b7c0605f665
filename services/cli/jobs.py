"""`afterimage jobs`: list, show and cancel jobs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.text import Text

from services.cli.clips import ClipOptions, Fps, Poster, Resample, Scale, Strip
from services.cli.connection import connected, options
from services.cli.display.words import candidates_table, counted, job_sheet, jobs_table, wide
from services.cli.embedded import settings_from
from shared.client import AsyncClient
from shared.client.credentials import API_KEY
from shared.client.image_file import check_place
from shared.domain.errors import AfterimageError, InvalidRequestError
from shared.domain.types import JobState, Modality

T = TypeVar("T")
Target = Annotated[str | None, typer.Option(help="host:port of a running Afterimage.")]
DataDir = Annotated[Path | None, typer.Option(help="Only the Afterimage that works in this data directory.")]
Tenant = Annotated[str, typer.Option(help="Tenant whose jobs to use.")]
JobId = Annotated[str, typer.Argument(help="Id of the job, as `list` shows it.")]

app = typer.Typer(no_args_is_help=True, help="List, show and cancel jobs of a running Afterimage.")


@app.command("list")
def list_jobs(
    state: Annotated[
        str | None, typer.Option(help="Only jobs in this state: queued, running, succeeded, failed or cancelled.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of jobs to show.")] = 20,
    after: Annotated[str, typer.Option(help="Token of the next page, printed below the page before.")] = "",
    target: Target = None,
    data_dir: DataDir = None,
    tenant: Tenant = "default",
) -> None:
    """List jobs, newest first.

    Example: afterimage jobs list --state running
    """
    if state is not None and state not in set(JobState):
        raise InvalidRequestError("state", f"must be one of {', '.join(JobState)}", state)
    wanted = JobState(state) if state else None
    views, token = _ask(
        target, data_dir, tenant, lambda client: client.list_jobs(state=wanted, page_size=limit, page_token=after)
    )
    out = wide()
    whose = "this key" if os.environ.get(API_KEY) else f"tenant {tenant}"
    none = f"no jobs{f' that are {state}' if state else ''} of {whose}"
    out.print(jobs_table(views, out.width) if views else none)
    if token:
        same = options(limit=limit, state=state, target=target, data_dir=data_dir, tenant=tenant)
        out.print(Text(f"more: afterimage jobs list --after {token}{same}"))


@app.command("show")
def show_job(
    job_id: JobId,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Also write its image to this file: .png, .jpg or .webp; PNG without an ending. Clip: .mp4, .gif …",
        ),
    ] = None,
    fps: Fps = None,
    scale: Scale = 1,
    resample: Resample = "lanczos",
    poster: Poster = None,
    strip: Strip = None,
    target: Target = None,
    data_dir: DataDir = None,
    tenant: Tenant = "default",
) -> None:
    """Show one job: its request, its plan with every candidate, and its seconds by stage.

    Examples: afterimage jobs show 01jd… · afterimage jobs show 01jd… --out fox.png · … --out fox.gif --fps 4
    """
    given: dict[str, Any] = {"fps": fps, "scale": scale if scale != 1 else None, "poster": poster, "strip": strip}
    given["resample"] = resample if resample != "lanczos" else None
    if out is None and (name := next((name for name, value in given.items() if value is not None), None)):
        raise InvalidRequestError(name, "needs --out, the file of the clip", given[name])
    if out is not None and not out.is_dir():
        check_place(out)  # the formats that fit are known with the job
    console, where = wide(), options(target=target, data_dir=data_dir, tenant=tenant)

    async def shown(client: AsyncClient) -> None:
        view = await client.get_job(job_id)
        video = view.job.request.modality is Modality.VIDEO
        clip = ClipOptions(
            video, None, None, fps, scale, resample, poster, strip, image_rule=f"is for clips; {job_id} is an image"
        )
        if out is not None:
            clip.check(out, 0, 1)
        console.print(job_sheet(view))
        if view.job.plan.candidates:
            console.print(candidates_table(view.job.plan, console.width))
        if out is not None:
            made = clip.keep(await client.get_picture(job_id), out, 1, where)
            console.print(Text(f"{out}" + (f"  (created the folder {made})" if made else "")))
            for name, file in clip.beside(0, 1):
                console.print(Text(f"{file}  ({name})"))

    _ask(target, data_dir, tenant, shown)


@app.command("cancel")
def cancel_job(job_id: JobId, target: Target = None, data_dir: DataDir = None, tenant: Tenant = "default") -> None:
    """Cancel a job; it stops between two steps, and the other jobs of its batch go on.

    Exits with 1 when the job had already ended.

    Example: afterimage jobs cancel 01jd…
    """
    view = _ask(target, data_dir, tenant, lambda client: client.cancel(job_id))
    if view.job.state is not JobState.CANCELLED:
        raise AfterimageError(f"{job_id} had already {view.job.state.value}: nothing was cancelled")
    after = f" after {counted(view.steps_run, 'step')}" if view.steps_run else ""
    wide().print(Text(f"{job_id} is cancelled{after}"))


def _ask(target: str | None, data_dir: Path | None, tenant: str, question: Callable[[AsyncClient], Awaitable[T]]) -> T:
    async def asked() -> T:
        async with connected(target, settings_from(data_dir=data_dir), tenant, data_dir=data_dir) as client:
            return await question(client)

    return asyncio.run(asked())
