"""`afterimage generate`: one picture, its progress, and where it started."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from services.cli.connection import connected_or_embedded, options
from services.cli.display.words import ProgressBars, candidates_table, hint, keep_picture, where_it_started, wide
from services.cli.embedded import settings_from
from shared.client import Accepted, AsyncClient, Picture, Waiting
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
    "The same request and seed: the same picture; default: a random seed. On a hit another seed looks much the same, "
    "since the picture starts from a cached latent: --fresh-noise varies it, --cache write draws it anew."
)
_QUALITY = (
    "auto: any model, as the plan sees fit; large, small or a model's id: only that one "
    "(small: where `afterimage up --small …` names one)."
)
_FRESH_NOISE = "Share of a reused latent's noise that is new, 0–1: the more, the more its details vary with the seed."


def generate(
    prompt: Annotated[str, typer.Argument(help="What to draw.")],
    out: Annotated[
        Path | None,
        Optional(
            "--out", "-o", help=".png, .jpg or .webp to write, PNG without an ending; default: <job id>.png here."
        ),
    ] = None,
    seed: Annotated[int | None, Optional(help=_SEED)] = None,
    steps: Annotated[int | None, Optional(help="Denoising steps T; default: the model's.")] = None,
    size: Annotated[str | None, Optional(help="WIDTHxHEIGHT in pixels; default: the model's.")] = None,
    guidance: Annotated[float | None, Optional(help="How strictly to follow the prompt.")] = None,
    negative: Annotated[str, Optional(help="What should not be in the picture.")] = "",
    quality: Annotated[str, Optional(help=_QUALITY)] = "auto",
    cache: Annotated[str, Optional(help="auto (read and write), read, write or off.")] = "auto",
    scope: Annotated[str, Optional(help="Who may start from it: private, tenant or public.")] = "tenant",
    savings: Annotated[float | None, Optional(help="0 best quality … 1 most steps saved; .5: as profiled.")] = None,
    fresh_noise: Annotated[float | None, Optional(help=_FRESH_NOISE)] = None,
    deadline_s: Annotated[float | None, Optional(help="Give up after this many seconds.")] = None,
    user: Annotated[str, Optional(help="Whose picture it is (scope private needs it).")] = "",
    tenant: Annotated[str, Optional(help="Whose cache to use.")] = "default",
    target: Annotated[str | None, Optional(help="host:port of a running Afterimage.")] = None,
    data_dir: Annotated[
        Path | None, Optional(help="Data directory: of the Afterimage that runs, or of one started here.")
    ] = None,
    why: Annotated[bool, Optional("--why", help="Show everything the planner looked at.")] = False,
) -> None:
    """Draw one picture and say where it started.

    Uses the Afterimage that runs (see [bold]afterimage up[/bold]); when none does, starts one in this process for this
    picture. Draw something similar next: it starts from the first picture's latents and needs fewer steps.

    [bold]Examples[/bold]

      afterimage generate 'a red fox in the snow' --seed 7 -o fox.png

      afterimage generate 'a red fox in the snow at night' --seed 7 --why

      afterimage generate 'two blue fish under water' --steps 25 --size 96x64 --cache off
    """
    check_writable(out or Path("<job id>.png"))
    fields: dict[str, Any] = {
        "negative_prompt": negative,
        "seed": seed,
        "steps": steps,
        "guidance": guidance,
        "quality": quality,
        "cache": _one_of("cache", cache, ("auto", "read", "write", "off")),
        "scope": _one_of("scope", scope, ("private", "tenant", "public")),
        "savings": savings,
        "fresh_noise": fresh_noise,
        "deadline_s": deadline_s,
        "drop_if_late": deadline_s is not None,
        "user": user,
        **_size(size),
    }
    console = wide()
    settings = settings_from(data_dir=data_dir)
    where = options(target=target, data_dir=data_dir, tenant=tenant)

    async def drawn() -> Picture:
        async with connected_or_embedded(target, settings, tenant, console, data_dir=data_dir) as client:
            return await draw(client, prompt, fields, console, where=where)

    picture = asyncio.run(drawn())
    path = out or Path(f"{picture.job.id}.png")
    made = keep_picture(picture, path, where)
    console.print(Text(where_it_started(picture)))
    console.print(Text(f"{picture.plan.reason} {hint(picture.plan)}".rstrip(), style="dim"))
    for note in (*picture.plan.degraded, *picture.job.warnings):
        console.print(Text(f"note: {note}", style="yellow"))
    if why and picture.plan.candidates:
        console.print(candidates_table(picture.plan, console.width))
    if made:
        console.print(Text(f"made the folder {made}", style="dim"))
    kind = "" if path.suffix else "PNG, "
    console.print(Text(f"{path}  ({kind}{picture.job.request.size}, seed {picture.seed}, job {picture.job.id})"))


async def draw(
    client: AsyncClient, prompt: str, fields: dict[str, Any], console: Console, *, where: str = ""
) -> Picture:
    """The picture, with a bar that moves by denoising step and begins where the picture does.

    Interrupted, it cancels the job: nobody else waits for it. Raises UnavailableError saying where the picture will be,
    once there is a job; `where`: the options that find it.
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
        task = bar.add_task("asking", total=None, at="")
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
            raise UnavailableError(f"{error}; job {job_id} was accepted, look for its picture: {again}") from error
    raise AfterimageError("the stream ended without a picture")


class Waits:
    """Says why nothing is drawn yet and when it is asked for again: in the bar; where there is none, on stderr, once
    per reason."""

    def __init__(self, bar: ProgressBars, task: TaskID) -> None:
        self._bar, self._task = bar, task
        self._told: set[str] = set()

    def __call__(self, waiting: Waiting) -> None:
        why = _why(waiting.error)
        soon = f"{waiting.delay_s:.0f} s" if waiting.delay_s >= 1 else "a moment"
        said = f"{why}: asking again in {soon}"
        self._bar.update(self._task, description=said)
        if not self._bar.console.is_interactive and why not in self._told:
            self._told.add(why)
            typer.echo(f"{said} ({waiting.error})", err=True)


def _why(error: AfterimageError) -> str:
    """Short enough for a bar."""
    if isinstance(error, StorageFullError):
        return "the disk is full"
    # without a delay it is gRPC's own, of a message that is too large, say
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
    return {"description": "drawing", "completed": event.step, "total": event.steps, "at": at}


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise InvalidRequestError(name, f"must be one of {', '.join(allowed)}", value)
    return value


def _size(text: str | None) -> dict[str, int]:
    if text is None:
        return {}
    width, _, height = text.lower().partition("x")
    if not (width.isdigit() and height.isdigit()):
        raise InvalidRequestError("size", "must be WIDTHxHEIGHT in pixels, e.g. 96x64", text)
    return {"width": int(width), "height": int(height)}
