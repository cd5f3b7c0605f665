"""`afterimage generate`: generate images, show their progress, and say where each started."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from services.cli.clips import ClipOptions, Fps, Poster, Resample, Scale, Strip, numbered
from services.cli.connection import connected_or_embedded, options
from services.cli.display.previews import check_previews
from services.cli.display.sources import show_pair
from services.cli.display.words import (
    candidates_table,
    dimensions,
    hint,
    raise_all,
    where_it_started,
    where_it_would_start,
    wide,
)
from services.cli.embedded import settings_from
from services.cli.following import draw
from services.cli.named_files import check_unchanged, named_files, names_in_errors
from shared.client import AsyncClient, ImagesFailedError, JobView, Picture
from shared.client.request_fields import request_message
from shared.domain.errors import AfterimageError, InvalidRequestError
from shared.models import served_cards

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
    "Denoising steps T. auto: the cheapest T and start that keep the quality, where the model lists several T; else "
    "the model's default."
)
_FRESH_NOISE = "Share of new noise in a reused latent, 0–1. With more, details vary more with the seed."

_N = (
    "Images, of the seeds seed, seed + 1, …; no two start from the same root. -o fox.png writes fox-1.png, fox-2.png, …"
)
_FROM = (
    "Image to start from (image to image): the id of a finished job, or a file that this command wrote. It is the "
    "first frame of a clip. See --strength."
)
_FROM_IMAGE = (
    "PNG, JPEG or WebP file of your own to start from; the first frame of a clip. Neither it nor the result enters the "
    "cache."
)
_MASK = "PNG file of the size of --from-image: its transparent pixels are generated anew, all others are kept."
_STRENGTH = (
    "Share of the steps that run after the start of --from or --from-image, above 0 up to 1: less keeps more of it. "
    "Default: 0.8, with --mask 1. With --continue: after the clip's last frame. Default: 1. A clip "
    "moves more with more."
)
_PREVIEWS = (
    "New or empty folder for previews during the run: step-0010.png, … (animated for a clip). -: show the last preview "
    "in the terminal."
)
_SLO = (
    "Class of the deadline in place of --deadline-s, such as standard: a multiple of the time that the image takes "
    "alone (setting slo_classes). A late image still comes, with a warning."
)
_CONTINUE = (
    "Finished clip to go on from: its job's id, or a file that this command wrote. The result is that clip, then the "
    "new frames."
)
_OUT = (
    "Image file: .png, .jpg or .webp; PNG without an ending. Clip: .mp4, .webm, .webp, .gif, .png, or a folder of "
    "frames without an ending. Default: <job id>.png or .mp4 here."
)


def generate(
    prompt: Annotated[str, typer.Argument(help="Text that describes the image or the clip.")],
    out: Annotated[
        Path | None,
        Optional("--out", "-o", help=_OUT),
    ] = None,
    seed: Annotated[int | None, Optional(help=_SEED)] = None,
    steps: Annotated[str, Optional(help=_STEPS)] = "auto",
    n: Annotated[int, Optional("-n", min=1, help=_N)] = 1,
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
    from_image: Annotated[Path | None, Optional("--from-image", help=_FROM_IMAGE)] = None,
    mask: Annotated[Path | None, Optional("--mask", help=_MASK)] = None,
    strength: Annotated[float | None, Optional(help=_STRENGTH)] = None,
    continue_job: Annotated[str | None, Optional("--continue", help=_CONTINUE)] = None,
    video: Annotated[bool, Optional("--video", help="Generate a clip, by the model of the setting video.")] = False,
    frames: Annotated[int | None, Optional(help="Frames of the clip. Default: the model's.")] = None,
    seconds: Annotated[
        float | None,
        Optional(help="Length of the clip in place of --frames, at the model's frames per second, not at --fps."),
    ] = None,
    fps: Fps = None,
    scale: Scale = 1,
    resample: Resample = "lanczos",
    poster: Poster = None,
    strip: Strip = None,
    previews: Annotated[Path | None, Optional(help=_PREVIEWS)] = None,
    deadline_s: Annotated[float | None, Optional(help="Seconds after which the job is dropped.")] = None,
    slo: Annotated[str | None, Optional(help=_SLO)] = None,
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
    """Generate an image, or with --video a clip, and say where it started; -n 4 generates four.

    Uses the running Afterimage (see [bold]afterimage up[/bold]). When none runs, starts one in this process for this
    image. Generate a similar image next: it starts from the first image's latents and needs fewer steps.

    [bold]Examples[/bold]

      afterimage generate 'a red fox in the snow' --seed 7 -o fox.png

      afterimage generate 'two red foxes in the snow' --seed 8 --why

      afterimage generate 'two blue fish under water' --steps 25 --size 96x64 --cache off

      afterimage generate 'a red fox in the snow at dawn' --dry-run

      afterimage generate 'a red fox in the snow' -n 4 -o fox.png

      afterimage generate --video 'a red fox runs to the left in the snow' --scale 4 -o fox.mp4
    """
    if continue_job and not video:
        raise InvalidRequestError("continue", "needs --video", continue_job)
    clip = ClipOptions(video, frames, seconds, fps, scale, resample, poster, strip)
    check_previews(previews, out)
    for index in range(n):
        clip.check(_path(out, "<job id>", index, n, video), index, n)
    files = named_files({"from": from_job, "continue": continue_job})
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
        "slo": slo,
        "variation": _one_of("variation", variation, ("auto", "same", "new")),
        "from_job": files["from"].job if "from" in files else from_job,
        "image": _file("from-image", from_image),
        "mask": _file("mask", mask),
        "strength": strength,
        "continue_job": files["continue"].job if "continue" in files else continue_job,
        "user": _login() if user is None else user,
        **_size(size),
        **clip.fields,
    }
    console = wide()
    settings = settings_from(data_dir=data_dir)
    where = options(target=target, data_dir=data_dir, tenant=tenant)

    def check() -> None:
        from services.gateway.served_models import Models
        from services.gateway.validation import image_count, validate

        message = request_message(prompt, **fields)
        validate(message, Models.of(served_cards(settings)), settings, tenant)
        image_count(n, settings)

    @contextlib.asynccontextmanager
    async def connected() -> AsyncIterator[AsyncClient]:
        found = connected_or_embedded(target, settings, tenant, console, data_dir=data_dir, check=check)
        with names_in_errors(files):
            async with found as client:
                await check_unchanged(files, client)
                yield client

    async def planned() -> list[JobView]:
        async with connected() as client:
            return await client.plan(prompt, n=n, **fields)

    async def drawn() -> list[Picture]:
        async with connected() as client:
            return await draw(client, prompt, fields, console, n=n, where=where, previews=previews)

    if dry_run:
        for view in asyncio.run(planned()):
            _explain(view, where_it_would_start(view), console, why=True)
            show_pair(view.job.plan, settings, target, console)
            console.print(Text(f"dry run, nothing generated  ({dimensions(view.job)}, seed {view.job.request.seed})"))
        return
    failed = list[AfterimageError]()
    try:
        pictures = asyncio.run(drawn())
    except ImagesFailedError as error:
        pictures = error.pictures
        failed.append(error)
    for picture in pictures:
        path = _path(out, picture.job.id, picture.index, n, video)
        _explain(picture, where_it_started(picture), console, why=why)
        if why:
            show_pair(picture.job.plan, settings, target, console)
        try:
            made = clip.keep(picture, path, n, where)
        except AfterimageError as error:  # the other results are written all the same
            failed.append(error)
            continue
        if made:
            console.print(Text(f"created the folder {made}", style="dim"))
        kind = ("" if path.suffix or video else "PNG, ") + dimensions(picture.job, scale)
        console.print(Text(f"{path}  ({kind}, seed {picture.seed}, job {picture.job.id})"))
        for name, file in clip.beside(picture.index, n):
            console.print(Text(f"{file}  ({name})"))
    raise_all(failed)


def _path(out: Path | None, job_id: str, index: int, n: int, video: bool = False) -> Path:
    """Return the file of an image or clip: numbered if there are several, and named by its job without `out`."""
    return Path(f"{job_id}.{'mp4' if video else 'png'}") if out is None else numbered(out, index, n)


def _explain(view: JobView, where_from: str, console: Console, *, why: bool) -> None:
    """Print the start of an image, the reason, notes, and with `why` the candidates."""
    plan = view.job.plan
    console.print(Text(where_from))
    console.print(Text(f"{plan.reason} {hint(plan)}".rstrip(), style="dim"))
    for note in (*plan.notes, *view.job.warnings):
        console.print(Text(f"note: {note}", style="yellow"))
    if why and plan.candidates:
        console.print(candidates_table(plan, console.width))


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


def _file(option: str, path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise InvalidRequestError(option, f"cannot be read ({error.strerror})", path) from error


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
