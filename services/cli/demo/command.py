"""`afterimage demo`: run a short session with the cache and without it, and write a report."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from protos import cache_maintainer_pb2, embedder_pb2, match_predictor_pb2
from protos.cache_maintainer_pb2_grpc import CacheMaintainerServiceStub
from protos.embedder_pb2_grpc import EmbedderServiceStub
from protos.match_predictor_pb2_grpc import MatchPredictorServiceStub
from services.cli.demo.figures import Embeddings, Row, Totals, few_steps, nearest, summary, totals, variety
from services.cli.demo.report import contact_sheet, few_in_words, report_html, variety_in_words
from services.cli.demo.session import Prompt, session
from services.cli.display.help import setting
from services.cli.display.tables import WIDE, Column, fitted
from services.cli.display.words import ProgressBars, counted, made_folder, wide
from services.cli.embedded import embedded, settings_from
from shared.client import AsyncClient, Picture
from shared.client import Progress as Step
from shared.domain.errors import AfterimageError
from shared.domain.types import vector_from
from shared.models import added, served_card
from shared.runtime import telemetry

if TYPE_CHECKING:
    from shared.service import Running

Optional = typer.Option
SETTLE_S = 5.0
FEW = 10
"""T is divided by this number for the runs in few steps."""


def demo(
    out: Annotated[Path, Optional("--out", "-o", help="Folder for the report and the images.")] = Path("out/demo"),
    seed: Annotated[int, Optional(help="Seed of the first image; the seeds of the other images follow from it.")] = 7,
    steps: Annotated[int | None, Optional(help="Denoising steps T. Default: the model's.")] = None,
    few: Annotated[
        int | None, Optional("--few-steps", help="Steps of the runs in few steps. Default: a tenth of T.")
    ] = None,
    large: Annotated[str | None, setting("large")] = None,
    small: Annotated[str | None, setting("small")] = None,
    encoder: Annotated[str | None, setting("encoder")] = None,
    device: Annotated[str | None, setting("device")] = None,
    data_dir: Annotated[
        Path | None,
        Optional(help="Data directory whose `models add` names are used; the rest of the directory is ignored."),
    ] = None,
) -> None:
    """Generate a short session of prompts, as a user would refine them, with the cache and without it.

    Starts Afterimage in this process with an empty cache of its own. Each prompt runs three times in a row on the warm
    service: with the cache, without it, and without it in few steps. The three runs have the same seed and are alone in
    their batch, so their seconds compare. Writes the images, a contact sheet, report.html and summary.json.

    [bold]Examples[/bold]

      afterimage demo

      afterimage demo --seed 11 --out /tmp/demo

      afterimage demo --small bundled:small

      afterimage demo --large my-finetune
    """
    telemetry.configure_logging("error")
    console = wide()
    made_folder(out)
    with tempfile.TemporaryDirectory(prefix="afterimage-demo-") as data:
        added.copy(settings_from(data_dir=data_dir).data_dir, Path(data))
        settings = settings_from(data_dir=Path(data), large=large, small=small, encoder=encoder, device=device)
        at_once = settings.model_copy(
            update={"picture_batch_s": 0.0}
        )  # each prompt waits until all earlier images are cached
        steps = steps or served_card(settings).default_steps
        rows = asyncio.run(_draw_session(at_once, seed, steps, few or max(1, steps // FEW), console))
    _write(out, rows)
    console.print(session_table(rows, console.width))
    _say_totals(console, rows)
    for said in filter(None, (variety_in_words(variety(rows)), few_in_words(few_steps(rows)))):
        console.print(Text(said))
    console.print(Text(f"Images and report: {out / 'report.html'}"))


async def _draw_session(settings: Any, seed: int, steps: int, few: int, console: Console) -> list[Row]:
    bar = ProgressBars(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    prompts = session()
    with bar:
        whole = bar.add_task("starting Afterimage", total=len(prompts))
        current = bar.add_task("", total=None)
        async with embedded(settings) as process, AsyncClient(process.address, api_key="", tls_ca="") as client:
            bar.update(whole, description="warming up")
            warm = Prompt("", "a first image that is not measured", "")
            await _draw(client, warm, {"seed": seed, "steps": steps, "cache": "off"}, bar, current)
            rows: list[Row] = []
            images = True
            for prompt in prompts:
                bar.update(whole, description="generating the session")
                images = await settled(process, {row.picture.job.id for row in rows if not row.exact}, images)
                rows.append(await _three_ways(process, client, prompt, (seed, steps, few), bar, current))
                bar.advance(whole)
    return rows


async def _three_ways(
    process: Running, client: AsyncClient, prompt: Prompt, given: tuple[int, int, int], bar: ProgressBars, at: TaskID
) -> Row:
    """Generate one prompt with the cache, then without it, then without it in few steps.

    given: the seed of the demo, T, and the number of few steps.
    """
    seed, steps, few = given
    ways = {"with cache": (steps, "auto"), "without": (steps, "off"), "few steps": (few, "off")}
    drawn: list[tuple[Picture, float]] = []
    for name, (run, cache) in ways.items():
        bar.update(at, description=f"{name + ':':<11} {prompt.text[:40]}")
        fields = {"seed": seed + prompt.seed, "steps": run, "cache": cache}
        drawn.append(await _draw(client, prompt, fields, bar, at))
    embeddings = await _embedded(process, prompt.text, [picture for picture, _ in drawn])
    return Row(prompt, *drawn[0], *drawn[1], *drawn[2], embeddings)


async def _draw(
    client: AsyncClient, prompt: Prompt, fields: dict[str, Any], bar: ProgressBars, current: TaskID
) -> tuple[Picture, float]:
    """Return the image and the client's seconds from the request to the image."""
    start = time.monotonic()
    async for event in client.generate_stream(prompt.text, user=prompt.user, **fields):
        if isinstance(event, Step):
            bar.update(current, completed=event.step, total=event.steps)
        if isinstance(event, Picture):
            return event, time.monotonic() - start
    raise AfterimageError("internal error: the stream ended without an image; please report it")


async def _embedded(process: Running, text: str, pictures: Sequence[Picture]) -> Embeddings:
    """Return the embeddings of the prompt and of its images, by the service's own encoder."""
    embedder: Any = EmbedderServiceStub(process.context.channel("embedder"))
    texts = await embedder.EmbedText(embedder_pb2.EmbedTextRequest(texts=[text]), timeout=30.0)
    asked = embedder_pb2.EmbedImageRequest(images=[picture.png for picture in pictures])
    images = await embedder.EmbedImage(asked, timeout=30.0)
    return Embeddings(*(vector_from(one.vector) for one in (*texts.embeddings, *images.embeddings)))


async def settled(process: Running, drawn: set[str], images: bool) -> bool:
    """Wait until the cache holds the states of these jobs and lookups find them; SETTLE_S seconds at most.

    images: wait for the embeddings of images as well. Return the value of `images` for the next call: False if no model
    starts from images, because no image is embedded then.
    """
    maintainer: Any = CacheMaintainerServiceStub(process.context.channel("cache_maintainer"))
    predictor: Any = MatchPredictorServiceStub(process.context.channel("match_predictor"))
    end, cached = time.monotonic() + SETTLE_S, False
    while time.monotonic() < end:
        page = await maintainer.Inspect(cache_maintainer_pb2.InspectRequest(page_size=1000), timeout=5.0)
        known = await predictor.Stats(match_predictor_pb2.StatsRequest(), timeout=5.0)
        searched = [entry for entry in page.entries if entry.states]
        cached = drawn <= {entry.id for entry in page.entries} and known.entries >= len(searched)
        if cached and not (images and await process.context.backends.catalog.entries.unembedded(1)):
            return images
        await asyncio.sleep(0.05)
    return images and not cached


def _write(out: Path, rows: Sequence[Row]) -> None:
    for number, row in enumerate(rows, 1):
        (out / f"{number:02}.png").write_bytes(row.picture.png)
        (out / f"{number:02}-without-cache.png").write_bytes(row.without.png)
        (out / f"{number:02}-few-steps.png").write_bytes(row.few.png)
    contact_sheet(rows).save(out / "contact-sheet.png")
    (out / "report.html").write_text(report_html(rows), encoding="utf-8")
    (out / "summary.json").write_text(summary(rows), encoding="utf-8")


def session_table(rows: Sequence[Row], width: int = WIDE) -> Table:
    """Return a table of the start and cost of each request, with the cache and without it."""
    columns = (
        Column(""),
        Column("user", leave=2),
        Column("prompt", least=20),
        Column("source"),
        Column("by", leave=1),
        *(Column(name, right=True) for name in ("similarity", "start K", "of T", "steps run", "seconds", "without")),
    )
    cells = [
        (
            str(number),
            row.prompt.user,
            Text(row.prompt.text),
            row.picture.plan.source.value,
            row.picture.model,
            f"{similarity:.3f}" if (similarity := nearest(row.picture.plan)) is not None else "–",
            str(row.picture.plan.start_step),
            str(row.steps),
            str(row.picture.steps_run),
            f"{row.seconds:.2f}",
            f"{row.seconds_without:.2f}",
        )
        for number, row in enumerate(rows, 1)
    ]
    return fitted(columns, cells, width, styles=["dim" if row.exact else "" for row in rows])


def _say_totals(console: Console, rows: Sequence[Row]) -> None:
    drawn, repeats = totals(rows)
    console.print(Text(_in_words(drawn, counted(drawn.pictures, "image"))))
    if drawn.doubt:
        console.print(Text(drawn.doubt, style="yellow"))
    if repeats.pictures:
        console.print(
            Text(_in_words(repeats, f"apart from those, {counted(repeats.pictures, 'exact repeat')}"), style="dim")
        )


def _in_words(total: Totals, what: str) -> str:
    return (
        f"{what}: {total.steps_run} of {total.steps_total} steps run ({total.steps_saved:.0%} saved), "
        f"{total.seconds_with_cache:.1f} s with the cache, {total.seconds_without_cache:.1f} s without it "
        f"({total.time_in_words})"
    )
