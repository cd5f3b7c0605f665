"""`afterimage generate`: generate one image, show its progress, and say where it started."""

from __future__ import annotations

import asyncio
import getpass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from services.cli.connection import connected_or_embedded, options
from services.cli.display.words import (
    ProgressBars,
    candidates_table,
    hint,
    keep_picture,
    where_it_started,
    where_it_would_start,
    wide,
)
from services.cli.embedded import settings_from
from shared.client import Accepted, AsyncClient, JobView, Picture, Waiting
from shared.client import Progress as Step
from shared.client.image_file import check_writable
from shared.domain.errors import (
    AfterimageError,
    InvalidRequestError,
    OverloadedError,
    StorageFullError,
    UnavailableError,
)

Optional = typer.Option
_SEED = (
    "Seed of the noise: the same request and seed give the same image. Default: random. Another seed of your own "
    "prompt starts from noise (see --variation)."
)
_VARIATION = (
    "Images to start from. auto: another seed of your own prompt starts from noise, or from images that you have not "
    "seen. same: any image that keeps the quality. new: only images that you have not seen."
)
_QUALITY = (
    "Model that may run: auto (the plan chooses), large, small (the first model of `afterimage up --small`), or a "
    "model's id."
)
_STEPS = (
    "Denoising steps T. auto: where the model lists several T, the plan chooses the cheapest T and start that keep the "
    "quality; else the model's default."
)
_FRESH_NOISE = "Share of new noise in a reused latent, 0–1. With more, details vary more with the seed."

_FROM = "Id of a finished job whose image to start from (image to image); see --strength."
_STRENGTH = (
    "Share of the steps that run after the image of --from, above 0 up to 1: less keeps more of it. Default: 0.8."
)


def generate(
    prompt: Annotated[str, typer.Argument(help="Text that describes the image.")],
    out: Annotated[
        Path | None,
        Optional(
            "--out", "-o", help="Image file: .png, .jpg or .webp; PNG without an ending. Default: <job id>.png here."
        ),
    ] = None,
    seed: Annotated[int | None, Optional(help=_SEED)] = None,
    steps: Annotated[str, Optional(help=_STEPS)] = "auto",
    size: Annotated[str | None, Optional(help="WIDTHxHEIGHT in pixels. Default: the model's.")] = None,
    guidance: Annotated[
        float | None,
        Optional(help="Guidance scale; higher values follow the prompt more closely. Default: the model's."),
    ] = None,
    negative: Annotated[str, Optional(help="Negative prompt: what the image should not show.")] = "",
    quality: Annotated[str, Optional(help=_QUALITY)] = "auto",
    cache: Annotated[str, Optional(help="Use of the cache: auto (read and write), read, write or off.")] = "auto",
    scope: Annotated[
        str, Optional(help="Who may start from this image: private (the same user), tenant or public.")
    ] = "tenant",
    savings: Annotated[
        float | None,
        Optional(help="Quality against steps saved: 0 best quality, 1 most steps saved. Default: 0.5, as profiled."),
    ] = None,
    fresh_noise: Annotated[float | None, Optional(help=_FRESH_NOISE)] = None,
    variation: Annotated[str, Optional(help=_VARIATION)] = "auto",
    from_job: Annotated[str | None, Optional("--from", help=_FROM)] = None,
    strength: Annotated[float | None, Optional(help=_STRENGTH)] = None,
    deadline_s: Annotated[float | None, Optional(help="Seconds after which the job is dropped.")] = None,
    user: Annotated[
        str | None,
        Optional(help="User who owns the image. Default: your login name, which people may share in containers."),
    ] = None,
    tenant: Annotated[str, Optional(help="Tenant whose cache to use.")] = "default",
    target: Annotated[str | None, Optional(help="host:port of a running Afterimage.")] = None,
    data_dir: Annotated[
        Path | None, Optional(help="Data directory of the running Afterimage, or of the one started here.")
    ] = None,
    why: Annotated[bool, Optional("--why", help="Show the planner's candidates and the reason of its choice.")] = False,
    dry_run: Annotated[
        bool, Optional("--dry-run", help="Show the plan with its candidates, and generate nothing.")
    ] = False,
) -> None:
    """Generate one image and say where it started.

    Uses the running Afterimage (see [bold]afterimage up[/bold]). When none runs, starts one in this process for this
    image. Generate a similar image next: it starts from the first image's latents and needs fewer steps.

    [bold]Examples[/bold]

      afterimage generate 'a red fox in the snow' --seed 7 -o fox.png

      afterimage generate 'a red fox in the snow at night' --seed 7 --why

      afterimage generate 'two blue fish under water' --steps 25 --size 96x64 --cache off

      afterimage generate 'a red fox in the snow at dawn' --dry-run
    """
    check_writable(out or Path("<job id>.png"))
    fields: dict[str, Any] = {
        "negative_prompt": negative,
        "seed": seed,
        "steps": _steps(steps),
        "guidance": guidance,
        "quality": quality,
        "cache": _one_of("cache", cache, ("auto", "read", "write", "off")),
        "scope": _one_of("scope", scope, ("private", "tenant", "public")),
        "savings": savings,
        "fresh_noise": fresh_noise,
        "deadline_s": deadline_s,
        "drop_if_late": deadline_s is not None,
        "variation": _one_of("variation", variation, ("auto", "same", "new")),
        "from_job": from_job,
        "strength": strength,
        "user": _login() if user is None else user,
        **_size(size),
    }
    console = wide()
    settings = settings_from(data_dir=data_dir)
    where = options(target=target, data_dir=data_dir, tenant=tenant)

    async def planned() -> list[JobView]:
        async with connected_or_embedded(target, settings, tenant, console, data_dir=data_dir) as client:
            return await client.plan(prompt, **fields)

    async def drawn() -> Picture:
        async with connected_or_embedded(target, settings, tenant, console, data_dir=data_dir) as client:
            return await draw(client, prompt, fields, console, where=where)

    if dry_run:
        for view in asyncio.run(planned()):
            _explain(view, where_it_would_start(view), console, why=True)
            console.print(Text(f"dry run, nothing generated  ({view.job.request.size}, seed {view.job.request.seed})"))
        return
    picture = asyncio.run(drawn())
    path = out or Path(f"{picture.job.id}.png")
    made = keep_picture(picture, path, where)
    _explain(picture, where_it_started(picture), console, why=why)
    if made:
        console.print(Text(f"created the folder {made}", style="dim"))
    kind = "" if path.suffix else "PNG, "
    console.print(Text(f"{path}  ({kind}{picture.job.request.size}, seed {picture.seed}, job {picture.job.id})"))


def _explain(view: JobView, where_from: str, console: Console, *, why: bool) -> None:
    """Print the start of an image, the reason, notes, and with `why` the candidates."""
    plan = view.job.plan
    console.print(Text(where_from))
    console.print(Text(f"{plan.reason} {hint(plan)}".rstrip(), style="dim"))
    for note in (*plan.degraded, *view.job.warnings):
        console.print(Text(f"note: {note}", style="yellow"))
    if why and plan.candidates:
        console.print(candidates_table(plan, console.width))


async def draw(
    client: AsyncClient, prompt: str, fields: dict[str, Any], console: Console, *, where: str = ""
) -> Picture:
    """Generate the image, with a progress bar of denoising steps that begins at the start step.

    An interrupt cancels the job, since no one else waits for it. Once the job is accepted, UnavailableError names the
    command that fetches the image later. where: the options that find the job.
    """
    bar = ProgressBars(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[at]}"),
        TimeElapsedColumn(),
        console=console,
    )
    job_id = ""
    with bar:
        task = bar.add_task("sending", total=None, at="")
        try:
            async for event in client.generate_stream(prompt, on_wait=Waits(bar, task), **fields):
                if isinstance(event, Picture):
                    return event
                job_id = event.job_id
                bar.update(task, **_moved(event))
        except asyncio.CancelledError:
            if job_id:
                await client.cancel(job_id)
            raise
        except UnavailableError as error:
            if not job_id:
                raise
            again = f"afterimage jobs show {job_id} -o FILE{where}"
            raise UnavailableError(f"{error}; job {job_id} was accepted, fetch its image later: {again}") from error
    raise AfterimageError("internal error: the stream ended without an image; please report it")


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
        return "the queue is full"
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


def _login() -> str:
    """Return the login name; empty where the system has none, as in some containers."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise InvalidRequestError(name, f"must be one of {', '.join(allowed)}", value)
    return value


def _steps(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdigit():
        raise InvalidRequestError("steps", "must be auto or a whole number, e.g. 25", text)
    return int(text)


def _size(text: str | None) -> dict[str, int]:
    if text is None:
        return {}
    width, _, height = text.lower().partition("x")
    if not (width.isdigit() and height.isdigit()):
        raise InvalidRequestError("size", "must be WIDTHxHEIGHT in pixels, e.g. 96x64", text)
    return {"width": int(width), "height": int(height)}
