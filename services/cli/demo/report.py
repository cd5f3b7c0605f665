"""The results of a demo as images: a contact sheet, and a report page without outside files."""

from __future__ import annotations

import base64
import html
import io
import textwrap
from collections.abc import Mapping, Sequence

from PIL import Image, ImageDraw, ImageFont

from services.cli.demo.figures import FewSteps, Row, Totals, Variety, few_steps, saved_by_relation, totals, variety
from services.cli.display.sources import chosen_model
from services.cli.display.words import counted
from shared.client import Picture
from shared.domain.plan_rules import ANOTHER
from shared.domain.types import Plan, PlanSource


def contact_sheet(rows: Sequence[Row], columns: int = 4, side: int = 160) -> Image.Image:
    """Return one image of all results with the cache, in order, each with its prompt and its start."""
    cell_w, cell_h, font = side + 20, side + 84, ImageFont.load_default(12)
    lines = -(-len(rows) // columns)
    sheet = Image.new("RGB", (columns * cell_w + 20, lines * cell_h + 20), "white")
    pen = ImageDraw.Draw(sheet)
    for index, row in enumerate(rows):
        x, y = 20 + index % columns * cell_w, 20 + index // columns * cell_h
        with Image.open(io.BytesIO(row.picture.png)) as picture:
            scaled = picture.convert("RGB")
        scaled.thumbnail((side, side)) if max(scaled.size) > side else None
        grown = scaled.resize((side, side * scaled.height // scaled.width), Image.Resampling.LANCZOS)
        sheet.paste(grown.crop((0, 0, side, side)), (x, y))
        pen.text((x, y + side + 4), f"{index + 1}. {started(row.picture.plan, row.run_steps)}", "black", font)
        for line, text in enumerate(textwrap.wrap(row.prompt.text, 26)[:3]):
            pen.text((x, y + side + 20 + 15 * line), text, "#555555", font)
    return sheet


def started(plan: Plan, steps: int) -> str:
    match plan.source:
        case PlanSource.EXACT:
            return "exact repeat"
        case PlanSource.NOISE:
            return "from noise"
        case PlanSource.IMAGE:
            return f"from step {plan.start_step} of {steps}, from {chosen_model(plan)}'s image"
        case _:
            return f"from step {plan.start_step} of {steps}"


RELATIONS = {
    "reroll": "re-roll: the same prompt, another seed",
    "edit": "edit of the user's own prompts",
    "topic": "new topic of the user",
    "other": "near other users' images only",
    "": "not recorded",
}
"""Value of shared.domain.types.Relation → words."""


def report_html(rows: Sequence[Row]) -> str:
    """Return one page without scripts or outside files: totals, then each request with its plan and candidates."""
    drawn, repeats = totals(rows)
    drawn_here = {row.picture.job.id: (number, row.picture) for number, row in reversed([*enumerate(rows, 1)])}
    cards = "\n".join(_card(number, row, drawn_here) for number, row in enumerate(rows, 1))
    apart = ""
    if repeats.pictures:
        apart = (
            f"<p>Apart from those, {counted(repeats.pictures, 'exact repeat')} took {repeats.seconds_with_cache:.2f} s "
            f"instead of {repeats.seconds_without_cache:.2f} s: the stored image was returned.</p>"
        )
    return _PAGE.format(
        pictures=drawn.pictures,
        steps_run=drawn.steps_run,
        steps_total=drawn.steps_total,
        steps_saved=f"{drawn.steps_saved:.0%}",
        with_cache=f"{drawn.seconds_with_cache:.1f}",
        without=f"{drawn.seconds_without_cache:.1f}",
        time=drawn.time_in_words,
        doubt=f'<p class="note">{drawn.doubt}</p>' if drawn.doubt else "",
        apart=apart,
        relations=_relations(saved_by_relation(rows)),
        variety=variety_in_words(variety(rows)),
        few=few_in_words(few_steps(rows)),
        cards=cards,
    )


def variety_in_words(found: Variety) -> str:
    """Return one sentence on the images of one prompt at several seeds; empty without such a prompt."""
    if found.share is None:
        return ""
    prompts = counted(found.prompts, "prompt")
    return (
        f"Variety: {found.pictures} images of {prompts} with different seeds differ {found.share:.0%} as much with "
        "the cache as without it (distance of their embeddings)."
    )


def few_in_words(found: FewSteps) -> str:
    """Return the comparison with few steps and no cache; without CLIP scores where they say nothing."""
    said = (
        f"Few steps alone: {found.steps} steps each from noise, without a cache, save {found.steps_saved:.0%} of the "
        f"steps and take {found.seconds:.1f} s."
    )
    if found.clip_ratio is None or found.clip_ratio_with_cache is None:
        return said
    return (
        f"{said} Their CLIP score is {found.clip_ratio:.3f} of that of all steps; with the cache it is "
        f"{found.clip_ratio_with_cache:.3f}."
    )


def _relations(found: Mapping[str, Totals]) -> str:
    return "".join(
        f"<tr><td>{RELATIONS.get(name, name)}</td><td>{some.pictures}</td><td>{some.steps_run} of {some.steps_total}"
        f"</td><td>{some.steps_saved:.0%}</td></tr>"
        for name, some in found.items()
    )


def _source(plan: Plan, drawn_here: Mapping[str, tuple[int, Picture]]) -> str:
    """Return the start of the image: its prompt, and its image from this session; empty from noise."""
    chosen = next((one for one in plan.candidates if one.chosen), None)
    if chosen is None:
        return ""
    number, picture = drawn_here.get(chosen.entry_id, (0, None))
    if picture is not None:
        return _figure(picture, f"it started from {number}: “{html.escape(chosen.prompt)}”", "from")
    return f'<p class="by">it started from “{html.escape(chosen.prompt or chosen.entry_id or ANOTHER)}”</p>'


def _card(number: int, row: Row, drawn_here: Mapping[str, tuple[int, Picture]]) -> str:
    plan, e = row.picture.plan, html.escape
    saved = row.run_steps if row.exact else plan.start_step
    candidates = "".join(
        f"<tr class='{'chosen' if one.chosen else ''}'><td>{e(one.prompt or one.entry_id or ANOTHER)}</td>"
        f"<td>{e(one.model)}</td>"
        f"<td>{one.kind}</td>"
        f"<td>{one.similarity:.3f}</td><td>{one.allowed_step}</td><td>{one.start_step}</td><td>{e(one.reason)}</td></tr>"
        for one in plan.candidates
    )
    heads = "<tr>" + "".join(f"<th>{name}</th>" for name in _HEADS) + "</tr>"
    count = f"<summary>{counted(len(plan.candidates), 'candidate')}</summary>"
    details = f"<details>{count}<table>{heads}{candidates}</table></details>"
    return f"""<article>
<h2>{number}. {e(row.prompt.text)}</h2>
<p class="by">{e(row.prompt.user)}: {e(row.prompt.change)}; seed {row.picture.seed}</p>
<div class="pair">{_figure(row.picture, f"with cache, {row.seconds:.2f} s")}
{_figure(row.without, f"without, {row.seconds_without:.2f} s")}
{_figure(row.few, f"{counted(row.few.steps_run, 'step')}, no cache, {row.seconds_few:.2f} s", "few")}
{_source(plan, drawn_here)}
<div class="plan"><p><b>{started(plan, row.run_steps)}</b>{f", similarity {plan.similarity:.3f}" if saved else ""}</p>
<div class="bar"><i style="width:{100 * saved / row.run_steps:.0f}%"></i></div>
<p>{row.picture.steps_run} of {row.run_steps} steps run. {e(plan.reason)}</p>
{"".join(f"<p class='note'>{e(note)}</p>" for note in (*plan.notes, *row.picture.job.warnings))}
{details if plan.candidates else ""}</div></div>
</article>"""


_HEADS = ("prompt", "by", "kind", "similarity", "K allowed", "K there", "why")


def _figure(picture: Picture, caption: str, kind: str = "") -> str:
    data = base64.b64encode(picture.png).decode()
    text = html.escape(picture.job.request.prompt, quote=True)
    image = f'<img src="data:image/png;base64,{data}" alt="{text}">'
    return f'<figure class="{kind}">{image}<figcaption>{caption}</figcaption></figure>'


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Afterimage: a demo session</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ margin-bottom: 0; }} h2 {{ font-size: 1.1rem; margin: 0; }}
article {{ border-top: 1px solid #8886; padding: 1rem 0; }}
.by, figcaption {{ opacity: .7; margin: 0 0 .5rem; font-size: .9rem; }}
.pair {{ display: flex; gap: 1rem; flex-wrap: wrap; }}
figure {{ margin: 0; }} img {{ width: 192px; border-radius: 6px; display: block; }}
.from, .few {{ width: 112px; }} .from img, .few img {{ width: 96px; }}
.plan {{ flex: 1 1 18rem; }} .plan p {{ margin: .3rem 0; }}
.bar {{ height: .6rem; background: #8884; border-radius: .3rem; overflow: hidden; }}
.bar i {{ display: block; height: 100%; background: #2a9d5c; }}
.note {{ color: #b36b00; }}
table {{ border-collapse: collapse; font-size: .85rem; }} td, th {{ padding: .15rem .5rem; text-align: left; }}
.chosen {{ font-weight: 600; }}
.totals {{ font-size: 1.2rem; }}
</style></head><body>
<h1>Afterimage</h1>
<p>Images start from earlier, similar images. The green bar is the share of steps that were skipped.</p>
<p class="totals">{pictures} images: <b>{steps_run} of {steps_total} steps</b> run ({steps_saved} saved),
<b>{with_cache} s</b> with the cache, {without} s without it ({time}).</p>
{doubt}{apart}
<table><tr><th>relation to the cached images</th><th>images</th><th>steps run</th><th>saved</th></tr>{relations}</table>
<p>{variety}</p>
<p>{few}</p>
<p class="by">All runs of a prompt have the same seed, one request at a time, on a warm service. The cache was empty at
the start. Seconds are from the request to the image. A CLIP score is the cosine of image and prompt; it does not see
whether an image is sharp, varied or a copy.</p>
{cards}
</body></html>
"""
