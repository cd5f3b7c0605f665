"""`afterimage demo-video`: generate a short session of clips, and write a page with players."""

from __future__ import annotations

import asyncio
import base64
import html
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from services.cli.demo.command import settled
from services.cli.demo.report import started
from services.cli.display.help import setting
from services.cli.display.masks import PairMasks, animation, pair_masks
from services.cli.display.words import dimensions, made_folder, wide
from services.cli.embedded import embedded, settings_from
from shared.client import AsyncClient, Clip, Progress
from shared.client.clip_file import check_clip_writable
from shared.domain.errors import AfterimageError, ConfigurationError
from shared.domain.types import PlanSource
from shared.models import added
from shared.runtime import telemetry

if TYPE_CHECKING:
    from shared.service import Running

Optional = typer.Option
SESSION = (
    "a red fox runs to the left in the snow",
    "a red fox runs to the right in the snow",
    "a blue fox runs to the left in the snow",
    "a small red fox hops in the snow",
    "a yellow duck moves to the left in a forest",
    "a red fox runs to the left in a forest",
)
"""The last prompt has the object of the first clip, and the background of the one before it: both may start its clip.
Both objects move alike: a stitched start shows the first clip's snow where the duck was alone (FlexCache §4.2.2)."""
ALPHA = 0.9
"""Share of quality that starts keep, as in NIRVANA §5.3.1."""
SCALE = 4
EXTRACT_S = 5.0
"""Seconds that extraction may take: without its parts, a clip is in no pair."""
MASKED_S = 30.0
"""Seconds that the session waits for the masks of one clip."""


@dataclass(frozen=True)
class Row:
    """One clip of the session, and the client's seconds from the request to the clip."""

    clip: Clip
    seconds: float
    preview: bytes = b""
    """Preview after the first step of a stitched clip, as a PNG: what the model sees in a start from two clips. Empty
    for other clips, whose previews show noise."""
    masks: PairMasks | None = None
    """Masks of a stitched start."""

    @property
    def steps(self) -> int:
        return self.clip.plan.run_steps(self.clip.job.request.steps)


def demo_video(
    out: Annotated[Path, Optional("--out", "-o", help="Folder for the page and the clips.")] = Path("out/demo-video"),
    seed: Annotated[int, Optional(help="Seed of the first clip; the others count up from it.")] = 7,
    steps: Annotated[int | None, Optional(help="Denoising steps T. Default: the model's.")] = None,
    video: Annotated[str | None, setting("video")] = None,
    segmenter: Annotated[str | None, setting("segmenter")] = None,
    device: Annotated[str | None, setting("device")] = None,
    data_dir: Annotated[Path | None, Optional(help="Data directory whose `models add` names are used.")] = None,
) -> None:
    """Generate six clips, one after the other, with an empty cache of their own; write a page with players.

    The last prompt has the object of one clip and the background of another, so its clip starts from both. The page
    shows both with their masks. The K tables are those of α = .9 unless AFTERIMAGE_K_TABLE_ALPHA is set: for the
    default .95, no start of the bundled model was proved. The second example takes the papers' starts instead.

    [bold]Examples[/bold]

      afterimage demo-video --out /tmp/demo-video

      AFTERIMAGE_REUSE_BOUND=flexcache afterimage demo-video --steps 50
    """
    telemetry.configure_logging("error")
    check_clip_writable(Path("clip.mp4"))
    with tempfile.TemporaryDirectory(prefix="afterimage-demo-") as data:
        added.copy(settings_from(data_dir=data_dir).data_dir, Path(data))
        settings = settings_from(data_dir=Path(data), video=video, segmenter=segmenter, device=device)
        changes: dict[str, Any] = {"extract_timeout_s": max(settings.extract_timeout_s, EXTRACT_S)}
        if "k_table_alpha" not in settings.model_fields_set:
            changes["k_table_alpha"] = ALPHA
        settings = settings.model_copy(update=changes)
        if not settings.video:
            raise ConfigurationError("video: names no model; set AFTERIMAGE_VIDEO or --video to a model of clips")
        made_folder(out)
        rows = asyncio.run(_session(settings, seed, steps))
    for number, row in enumerate(rows, 1):
        row.clip.save(out / f"{number:02}.mp4", scale=SCALE)
        row.clip.save_poster(out / f"{number:02}.jpg", scale=SCALE)
    (out / "report.html").write_text(page(rows), encoding="utf-8")
    found = summary(rows)
    (out / "summary.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    said = f"{found['clips']} clips: {found['steps_run']} of {found['steps_total']} steps run, {found['seconds']:.1f} s"
    wide().print(Text(f"{said}\nClips and page: {out / 'report.html'}"))


async def _session(settings: Any, seed: int, steps: int | None) -> list[Row]:
    rows = list[Row]()
    async with embedded(settings) as process, AsyncClient(process.address, api_key="", tls_ca="") as client:
        for number, prompt in enumerate(SESSION):
            fields = {"seed": seed + number, "steps": steps, "user": "ana", "modality": "video"}
            begun = time.monotonic()
            clip, preview = await _clip(client, prompt, fields)
            seconds = time.monotonic() - begun
            masks = await pair_masks(process.context.backends.blobs, clip.plan)
            rows.append(Row(clip, seconds, preview if masks else b"", masks))
            if clip.plan.capture_steps:
                await settled(process, {clip.job.id}, images=False)
                await segmented(process)
    return rows


async def _clip(client: AsyncClient, prompt: str, fields: dict[str, Any]) -> tuple[Clip, bytes]:
    """Return the clip, and the first preview of its run."""
    first = b""
    async for event in client.generate_stream(prompt, previews=True, **fields):
        if isinstance(event, Progress):
            first = first or event.preview
        if isinstance(event, Clip):
            return event, first
    raise AfterimageError("internal error: the stream ended without a clip; please report it")


async def segmented(process: Running) -> None:
    """Wait until the segmenter is done with all clips so far; MASKED_S seconds at most."""
    jobs, end = process.context.backends.catalog.jobs, time.monotonic() + MASKED_S
    while process.context.settings.segmenter and time.monotonic() < end:
        if not await jobs.to_segment(1):
            break
        await asyncio.sleep(0.05)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the content of summary.json."""
    return {
        "clips": len(rows),
        "steps_total": sum(row.steps for row in rows),
        "steps_run": sum(row.clip.steps_run for row in rows),
        "stitched": sum(row.clip.plan.source is PlanSource.STITCHED for row in rows),
        "seconds": sum(row.seconds for row in rows),
    }


def page(rows: Sequence[Row]) -> str:
    """Return a page that needs only the files beside it: players that loop, each with the start of its clip."""
    found, cards = summary(rows), ""
    numbers = {row.clip.job.id: number for number, row in enumerate(rows, 1)}
    for number, row in enumerate(rows, 1):
        request, plan = row.clip.job.request, row.clip.plan
        cards += (
            f'<article><video src="{number:02}.mp4" poster="{number:02}.jpg" autoplay loop muted playsinline controls>'
            f"</video>\n<h2>{number}. {html.escape(request.prompt)}</h2>\n"
            f"<p><b>{html.escape(started(plan, row.steps))}</b>: {row.clip.steps_run} of {row.steps} steps run, "
            f"{row.seconds:.2f} s, {dimensions(row.clip.job)}, seed {request.seed}</p>\n"
            f"<p>{html.escape(' '.join((plan.reason, *plan.notes)))}</p>{_pair(row, numbers)}</article>\n"
        )
    return _PAGE.format(**found, cards=cards, pairs=_PAIRS.format(**found) if found["stitched"] else "")


def _pair(row: Row, numbers: Mapping[str, int]) -> str:
    """Return both sources of a stitched start with their masks, and its first preview; empty for other starts.

    numbers: of the session's clips, by job, which is also the entry's id.
    """
    if row.masks is None:
        return ""
    figures = ""
    for name, source, mask in zip(("object", "background"), row.clip.plan.sources, row.masks[:2], strict=True):
        number = numbers[source.entry_id]
        figures += f'<figure><video src="{number:02}.mp4" autoplay loop muted playsinline></video>'
        figures += f"<figcaption>{name} of {number}</figcaption></figure>{_figure(animation(mask), 'its masks')}"
    figures += _figure(animation(row.masks.taken), "taken from each")
    return f'<div class="pair">{figures}{_figure(row.preview, "first preview") if row.preview else ""}</div>'


def _figure(png: bytes, caption: str) -> str:
    data = base64.b64encode(png).decode()
    return f'<figure><img src="data:image/png;base64,{data}" alt=""><figcaption>{caption}</figcaption></figure>'


_PAIRS = """
{stitched} started from the object of one clip and the background of another.
In masks, orange cells show the object and blue ones the background; black cells belong to neither."""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Afterimage: a session of clips</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
main {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(16rem, 1fr)); gap: 1.5rem; }}
main {{ margin-top: 1.5rem; }} h2 {{ font-size: 1rem; margin: .5rem 0; }} p {{ font-size: .85rem; margin: .3rem 0; }}
video {{ border-radius: 6px; display: block; outline: 1px solid #8884; width: 100%; }}
.pair {{ display: flex; flex-wrap: wrap; gap: .5rem; }} figure {{ margin: 0; width: 64px; font-size: .7rem; }}
img {{ width: 64px; image-rendering: pixelated; display: block; }}
</style></head><body>
<h1>Afterimage</h1>
<p>{clips} clips: <b>{steps_run} of {steps_total} steps</b> run, {seconds:.1f} s.
The cache was empty at the start.{pairs}</p>
<main>{cards}</main>
</body></html>
"""
