"""The page of a profile: the four measures as tables, and images side by side, without outside files."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from services.cli.profiles.pairs import UNCHANGED, ScenePair, StitchedPair, grammar_of
from shared.models.k_table import Cell, KTable
from shared.models.quality import BOUNDS, Bound, Measured, Quality, frames_of

SIDE = 192
"""Pixels of the longer side of an image on the page; the folder `images/` has the images as generated."""


@dataclass(frozen=True)
class Section:
    """The results at one T."""

    about: Mapping[str, Any]
    """First line of rows.jsonl."""
    kinds: Mapping[tuple[str, int], Cell]
    """(kind of change, K) → one cell over every similarity."""
    tables: Mapping[float, KTable]
    """α → table; the page shows the bands of the largest α."""
    images: Path
    """Folder of the images of the first pairs."""
    pairs: Sequence[ScenePair]
    """The first pair of each kind."""


def keep_images(folder: Path, pair: ScenePair, images: Mapping[str, Any]) -> None:
    """Write the images of the first pair of each kind as PNG; of a clip, a strip of frames."""
    if pair.number < len(grammar_of(next(iter(images.values())).ndim - 2).edits):
        folder.mkdir(parents=True, exist_ok=True)
        for name, pixels in images.items():
            Image.fromarray(np.hstack(frames_of(pixels))).save(folder / f"{pair.number}-{name}.png")


def report_html(sections: Sequence[Section], learned: str = "") -> str:
    """Return the page as HTML. learned: the section about the learned bound."""
    first = sections[0]
    body = learned + "".join(_section(section) for section in sections)
    rules = "".join(
        f"<li><b>{name}</b> {'≤' if bound.at_most else '≥'} {bound.limit:g}: {html.escape(bound.reason)}</li>"
        for name, bound in _bounds(max(first.tables)).items()
    )
    return _PAGE.format(model=html.escape(first.about["model"]), rules=rules, body=body)


def _bounds(alpha: float) -> dict[str, Bound]:
    own = {name: replace(BOUNDS[name], limit=alpha) for name in ("fidelity", "attributes")}
    return {**BOUNDS, **own}


def _section(section: Section) -> str:
    table, steps = section.tables[max(section.tables)], section.about["steps"]
    cells = section.kinds.items()
    grammar = grammar_of(section.about.get("frames", 1))
    kinds = ((kind, k, cell) for kind in (UNCHANGED, *grammar.edits) for (name, k), cell in cells if name == kind)
    bands = ((f"{cell.min_similarity:.3f}–{cell.max_similarity:.3f}", cell.k, cell) for cell in table.cells)
    shown = [pair for pair in section.pairs if _has(section.images, pair)]
    return f"""<h2>T = {steps}</h2>
{_table("kind of change", kinds, table.alpha, unrelated="unrelated")}
{_table("similarity", bands, table.alpha)}
{"".join(_pair(section, pair) for pair in shown)}"""


def _table(head: str, rows: Iterable[tuple[str, int, Cell]], alpha: float, unrelated: str = "") -> str:
    """Return a table of one row per cell; a measure outside its bound is marked.

    unrelated: the first column's text of rows whose copying is bounded; edits may keep the source.
    """
    bounds = _bounds(alpha)
    heads = "".join(f"<th>{name}</th>" for name in (head, "K", "pairs", *bounds))
    lines = []
    for text, k, cell in rows:
        quality = cell.quality or Quality()
        measures = "".join(
            _measured(getattr(quality, name), bound, cell.count, name != "copying" or text == unrelated)
            for name, bound in bounds.items()
        )
        lines.append(f"<tr><td>{html.escape(text)}</td><td>{k}</td><td>{cell.count}</td>{measures}</tr>")
    return f"<div class='wide'><table><tr>{heads}</tr>{''.join(lines)}</table></div>"


def _measured(measured: Measured | None, bound: Bound, pairs: int, bounded: bool) -> str:
    """Return a table cell: value, confidence bound, and the number of pairs where it differs from the row's."""
    if measured is None:
        return "<td>–</td>"
    known = measured.bound is not None
    state = ("kept" if bound.holds(measured) else "missed") if known and bounded else ""
    notes = [f"{'≤' if bound.at_most else '≥'} {measured.bound:.3f}"] if known else []
    notes += [f"n {measured.count}"] if measured.count != pairs else []
    return f"<td class='{state}'>{measured.value:.3f} <i>{', '.join(notes)}</i></td>"


def _has(folder: Path, pair: ScenePair) -> bool:
    return (folder / f"{pair.number}-before.png").is_file()


def _pair(section: Section, pair: ScenePair) -> str:
    """Return the images of one pair: the source; from noise and from each K, each with its further seeds."""

    def row(name: str, caption: str) -> str:
        further = sorted(section.images.glob(f"{pair.number}-{name}+*.png"))
        own, others = _figure(section.images / f"{pair.number}-{name}.png"), [_figure(path) for path in further]
        return f"<tr><th>{caption}</th><td>{own}</td><td>{''.join(others)}</td></tr>"

    fresh = "" if section.about.get("images_from") else ", fresh noise"
    rows = [row("noise", "from noise"), *(row(str(k), f"from K = {k}") for k in section.about["ks"])]
    both = {"before": "source", "beside": "source of the background"}
    sources = "".join(
        f"<figure>{_figure(path)}<figcaption>{caption}</figcaption></figure>"
        for name, caption in both.items()
        if (path := section.images / f"{pair.number}-{name}.png").exists()
    )
    texts = [pair.before_text, *([pair.beside_text] if isinstance(pair, StitchedPair) else [])]
    said = " and ".join(f"“{html.escape(text)}”" for text in texts)
    return f"""<article><h3>{html.escape(pair.kind)}</h3>
<p>{said} → “{html.escape(pair.after_text)}”</p>
<div class="pair">{sources}
<table><tr><th></th><th>its seed</th><th>other seeds{fresh}</th></tr>{"".join(rows)}</table></div></article>"""


def _figure(path: Path) -> str:
    with Image.open(path) as image:
        small, file = image.convert("RGB"), io.BytesIO()
        small.thumbnail((SIDE, SIDE))
        small.save(file, "JPEG", quality=92, subsampling=0)
    return f'<img src="data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}" alt="{path.stem}">'


def report_section(found: Mapping[str, Any]) -> str:
    """Return the held-out figures as HTML, for report.html."""
    lines = []
    for steps, of in found["steps"].items():
        lines.append(_held_out_row(steps, "oracle", of["pairs"], of["oracle"], 1.0))
        lines += [_held_out_row(steps, name, of["pairs"], one, one["of_oracle"]) for name, one in of["methods"].items()]
    heads = "".join(
        f"<th>{name}</th>" for name in ("T", "method", "pairs", "coverage", "steps saved", "of the oracle's")
    )
    return f"""<h2>Learned bound, on held-out pairs</h2>
<p>Coverage: share of the requests whose plan keeps every bound, as the mean over pairs of the same kind does. The
oracle knows each kind's last safe K. Its row has the coverage {found["coverage_wanted"]:g}; in the last column it has
the coverage of the row.</p>
<div class='wide'><table><tr>{heads}</tr>{"".join(lines)}</table></div>"""


def _held_out_row(steps: str, name: str, pairs: int, one: Mapping[str, Any], of_oracle: float | None) -> str:
    cells: Sequence[str] = (
        steps,
        html.escape(name),
        str(pairs),
        f"{one['coverage']:.3f}",
        f"{one['saved']:.1%}",
        "–" if of_oracle is None else f"{of_oracle:.0%}",
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Afterimage: quality of reused images</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }}
h3, p {{ margin: .2rem 0; }}
article {{ border-top: 1px solid #8886; padding: 1rem 0; }}
.wide {{ overflow-x: auto; margin: 1rem 0; }}
.pair {{ display: flex; gap: 1rem; flex-wrap: wrap; }}
figure {{ margin: 0; }} img {{ width: 96px; border-radius: 6px; margin: 1px; }}
table {{ border-collapse: collapse; font-size: .85rem; }}
td, th {{ padding: .15rem .5rem; text-align: left; white-space: nowrap; }}
td i {{ opacity: .6; }}
.kept {{ background: #2a9d5c33; }} .missed {{ background: #c0392b33; }}
</style></head><body>
<h1>Quality of reused images: {model}</h1>
<p>Each image started after step K of T from another prompt's run. The reference is the image of the same request from
noise. Fidelity, attributes, look and variety are shares of the reference's. Copying is the likeness to the source, less
the reference's likeness to that source. The small figure is the 95 % confidence bound.</p>
<ul>{rules}</ul>
{body}
</body></html>
"""
