"""Compose the README's image of an edit chain from the output of `make demo`: `python -m scripts.edit_chain`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from PIL import Image, ImageDraw, ImageFont

SIDE, GAP, LEFT, TOP = 140, 16, 84, 56
"""Pixels: side of an image, space between images, room for the labels of the rows, room for the arrows."""
TEXT_H, BAR_H = 66, 10
"""Pixels: three lines of a prompt; the bar of steps."""
SHOWN = [1, 2, 3, 4, 6, 7, 8, 10]
"""One user's requests: edits, the same in other words, a re-roll, and an exact repeat."""
INK, PALE, SAVED, RUN = "#1f2328", "#59636e", "#2a9d5c", "#b9c0c8"


@dataclass(frozen=True)
class Link:
    """One column of the composed image: a request of the demo, and the column that its image started from."""

    request: Mapping[str, Any]
    source: int | None
    """Index of the column; None: from noise."""

    @property
    def words(self) -> tuple[str, str]:
        """Return where the image started, and the steps saved."""
        run, steps = self.request["steps_run"], self.request["steps"]
        if self.source is None:
            return "from noise", f"{run} steps"
        if self.request["source"] == "exact":
            return f"same request as {self.source + 1}", "stored image, 0 steps"
        return (
            f"from {self.source + 1} after step {self.request['start_step']}",
            f"{run} steps, {1 - run / steps:.0%} saved",
        )


def chain(requests: Sequence[Mapping[str, Any]], numbers: Sequence[int]) -> list[Link]:
    """Return the requests with these numbers, counted from 1; ValueError if one started from an image not shown."""
    kept = [requests[number - 1] for number in numbers]
    prompts = [one["prompt"] for one in kept]
    links = []
    for at, one in enumerate(kept):
        from_noise = one["source"] == "noise"
        if not from_noise and one["from_prompt"] not in prompts[:at]:
            raise ValueError(f"request {numbers[at]} started from {one['from_prompt']!r}: show that request, too")
        links.append(Link(one, None if from_noise else prompts.index(one["from_prompt"])))
    return links


def composed(links: Sequence[Link], folder: Path) -> Image.Image:
    """Return one column per request: prompt, image with the cache, its start, image without the cache."""
    width = LEFT + len(links) * (SIDE + GAP) + GAP
    rows = [TOP + TEXT_H, TOP + TEXT_H + SIDE + 64]
    sheet = Image.new("RGB", (width, rows[1] + SIDE + 40), "white")
    pen, font, small = ImageDraw.Draw(sheet), ImageFont.load_default(14), ImageFont.load_default(13)
    for label, y in zip(("with\nthe cache", "without\nthe cache"), rows, strict=True):
        pen.multiline_text((GAP, y + SIDE // 2 - 16), label, INK, font)
    for at, link in enumerate(links):
        x, name = _left(at), Path(link.request["file"])
        prompt = textwrap.wrap(f"{at + 1}. {link.request['prompt']}", 21)
        pen.multiline_text((x, TOP), "\n".join(prompt[:4]), INK, small, spacing=2)
        sheet.paste(_image(folder / name), (x, rows[0]))
        sheet.paste(_image(folder / f"{name.stem}-without-cache.png"), (x, rows[1]))
        saved = round(SIDE * (1 - link.request["steps_run"] / link.request["steps"]))
        y = rows[0] + SIDE + 6
        pen.rectangle((x, y, x + SIDE - 1, y + BAR_H), RUN)
        pen.rectangle((x, y, x + saved - 1, y + BAR_H), SAVED) if saved else None
        for line, text in enumerate(link.words):
            pen.text((x, y + BAR_H + 4 + 16 * line), text, INK if line == 0 else PALE, small)
    _arrows(pen, links)
    pen.text((LEFT + GAP, rows[1] + SIDE + 12), _total(links), INK, font)
    return sheet


def _left(at: int) -> int:
    return LEFT + GAP + at * (SIDE + GAP)


def _image(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def _arrows(pen: ImageDraw.ImageDraw, links: Sequence[Link]) -> None:
    """Draw one line per source, each at a different height, with an arrow down to each image that started there."""
    sources = sorted({link.source for link in links if link.source is not None})
    apart = min(14, (TOP - 18) // max(len(sources), 1))
    for level, source in enumerate(sources):
        y, begin = 12 + apart * level, _left(source) + SIDE // 2 + 10 * level
        targets = [_left(at) + SIDE // 2 for at, link in enumerate(links) if link.source == source]
        pen.line((begin, TOP - 6, begin, y, max(targets), y), SAVED, 2)
        for x in targets:
            pen.line((x, y, x, TOP - 8), SAVED, 2)
            pen.polygon(((x - 4, TOP - 12), (x + 5, TOP - 12), (x, TOP - 4)), SAVED)


def _total(links: Sequence[Link]) -> str:
    made = [link.request for link in links if link.request["source"] != "exact"]
    run, steps = sum(one["steps_run"] for one in made), sum(one["steps"] for one in made)
    repeats = len(links) - len(made)
    return (
        f"{len(made)} generated images: {run} of {steps} denoising steps run, {1 - run / steps:.0%} saved (green). "
        f"{repeats} exact repeat: 0 steps. Without the cache each image runs {steps // len(made)}."
    )


def main(
    demo: Annotated[Path, typer.Option(help="Folder that `make demo` wrote.")] = Path("out/demo"),
    out: Annotated[Path, typer.Option(help="PNG to write.")] = Path("docs/images/edit-chain.png"),
    show: Annotated[list[int], typer.Option(help="Requests of the demo's session to show, counted from 1.")] = SHOWN,
) -> None:
    """Compose one image: prompts, starts, steps saved, and the images with and without the cache."""
    requests = json.loads((demo / "summary.json").read_text())["requests"]
    composed(chain(requests, show), demo).save(out, optimize=True)
    typer.echo(f"{out}: {out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    typer.run(main)
