"""Variety of a service's images: re-rolls, one prompt by several users, copying, and the composition of edits.

    python -m bench.variety
    python -m bench.variety --users 4 --steps 5

Twenty users send ten requests each to an empty cache, in turns: a popular prompt, edits, re-rolls, an unrelated image,
another user's prompt, a paraphrase, and words that the model never saw. The real planner plans each request with the
default rules, and the engine generates it. The same requests from noise at the model's default T are the reference.

Variety is the mean distance (1 − cosine of CLIP embeddings) between the images of one prompt at several seeds, as a
share of the reference's. Likeness is the cosine of two images' pixels, each less its mean colour; copying is the
likeness to the source less that of the reference image to the same source. Bounds are of 95 %, one-sided.
"""

from __future__ import annotations

import asyncio
import io
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from bench.measuring.judging import BATCH, open_encoder, pixels_of
from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, settings_of, table
from bench.traced.painting import Painter
from bench.traced.users_stream import Given, Wanted, name_of, roots_of, serve_users, users_requests
from services.embedder.encoder import Encoder
from shared.domain.types import PlanSource, Relation, Vector, vector_from
from shared.models import served_card
from shared.models.confidence import mean_bounds, ratio_bounds
from shared.models.quality import likeness, spread
from shared.runtime.settings import Settings
from shared.runtime.telemetry import configure_logging

AUTO = 0
"""T of a run whose plans choose T."""
SHEET = 24
"""Edits on the contact sheet."""
Interval = tuple[float, float, float]
"""Value, lower and upper bound."""


def figures_of(
    wanted: Sequence[Wanted], given: Mapping[int, Given], reference: Mapping[int, Given],
    embedded: Mapping[int, Vector], of_reference: Mapping[int, Vector],
) -> dict[str, Any]:  # fmt: skip
    """Return the figures of one run; the embeddings are those of its images and of the reference's."""
    hits = sources_of(given)
    relations = {number: given[number].plan.relation for number in hits}
    several = {"rerolls": seeds_by(wanted, own_user=True), "across_users": seeds_by(wanted, own_user=False)}
    unseen = [one.number for one in wanted if one.kind == "unseen"]
    unrelated = [one.number for one in wanted if one.kind == "unrelated"]
    return {
        "images": len(given),
        "steps_run": fmean(one.steps_run for one in given.values()),
        "kinds": kinds_of(wanted, given),
        "variety": {name: variety_of(sets, embedded, of_reference) for name, sets in several.items()},
        "sets_of_seeds": {name: len(sets) for name, sets in several.items()},
        "unrelated_reused": sum(number in hits for number in unrelated),
        "unrelated": len(unrelated),
        "copying": copying_of((n for n in hits if relations[n] != Relation.EDIT), hits, given, reference),
        "copying_images": sum(relation != Relation.EDIT for relation in relations.values()),
        "edits": composition_of([n for n in hits if relations[n] == Relation.EDIT], hits, given, reference),
        "root_share": root_share(wanted, given),
        "unseen_from_noise": fmean(given[number].plan.source is PlanSource.NOISE for number in unseen),
    }


def sources_of(given: Mapping[int, Given]) -> dict[int, int]:
    """Return the number of the image that each reused image started from."""
    numbers = {name_of(number): number for number in given}
    return {n: numbers[one.plan.entry_id] for n, one in given.items() if one.plan.source is not PlanSource.NOISE}


def seeds_by(wanted: Sequence[Wanted], *, own_user: bool) -> list[list[int]]:
    """Return the images of each prompt at several seeds: of one user, or one image of each of several users."""
    groups: dict[tuple[str, ...], list[Wanted]] = {}
    for one in wanted:
        if one.kind != "unseen":
            groups.setdefault((one.asked.prompt, *([one.asked.user] if own_user else [])), []).append(one)
    if not own_user:
        groups = {key: list({one.asked.user: one for one in some}.values()) for key, some in groups.items()}
    return [[one.number for one in some] for some in groups.values() if len(some) > 1]


def variety_of(sets: Sequence[Sequence[int]], own: Mapping[int, Vector], reference: Mapping[int, Vector]) -> Interval:
    """Return the share of the reference's variety that is kept, with bounds over prompts."""
    ours, theirs = ([spread([of[number] for number in some]) for some in sets] for of in (own, reference))
    return (sum(ours) / sum(theirs), *ratio_bounds(ours, theirs)) if sum(theirs) else (float("nan"),) * 3


def copying_of(
    numbers: Iterable[int], sources: Mapping[int, int], given: Mapping[int, Given], reference: Mapping[int, Given]
) -> Interval:
    found = [_likenesses(number, sources, given, reference) for number in numbers]
    more = [ours - theirs for ours, theirs in found]
    return (fmean(more), *mean_bounds(more)) if more else (float("nan"),) * 3


def composition_of(
    numbers: Sequence[int], sources: Mapping[int, int], given: Mapping[int, Given], reference: Mapping[int, Given]
) -> dict[str, Any]:
    """Return the likeness of edits to their source, with the cache and from noise."""
    found = [_likenesses(number, sources, given, reference) for number in numbers]
    sides = {"with_cache": [ours for ours, _ in found], "from_noise": [theirs for _, theirs in found]}
    return {"images": len(found)} | {
        name: (fmean(values), *mean_bounds(values)) if values else (float("nan"),) * 3 for name, values in sides.items()
    }


def _likenesses(
    number: int, sources: Mapping[int, int], given: Mapping[int, Given], reference: Mapping[int, Given]
) -> tuple[float, float]:
    source = pixels_of(given[sources[number]].png)
    ours, theirs = (likeness(pixels_of(of[number].png), source) for of in (given, reference))
    return ours, theirs


def root_share(wanted: Sequence[Wanted], given: Mapping[int, Given]) -> float:
    """Return the largest share of one root in the images of users other than the root's own."""
    users = {one.number: one.asked.user for one in wanted}
    behind: Counter[int] = Counter()
    for number, root in roots_of(given).items():
        behind[root] += users[number] != users[root]
    shares = [count / sum(user != users[root] for user in users.values()) for root, count in behind.items() if count]
    return max(shares, default=0.0)


def kinds_of(wanted: Sequence[Wanted], given: Mapping[int, Given]) -> dict[str, dict[str, Any]]:
    """Return, for each kind of request, the images, the share that was reused, and how many had each relation."""
    groups: dict[str, list[Given]] = {}
    for one in wanted:
        groups.setdefault(one.kind, []).append(given[one.number])
    return {
        kind: {
            "images": len(some),
            "reused": fmean(one.plan.source is not PlanSource.NOISE for one in some),
            "steps_run": fmean(one.steps_run for one in some),
            "relations": dict(Counter(one.plan.relation for one in some)),
        }
        for kind, some in groups.items()
    }


def contact_sheet(
    wanted: Sequence[Wanted], given: Mapping[int, Given], reference: Mapping[int, Given], side: int = 96
) -> Image.Image:
    """Return edits in columns of three images: the source, the edit with the cache, and the edit from noise."""
    prompts = {one.number: one.asked.prompt for one in wanted}
    hits = {n: s for n, s in sources_of(given).items() if given[n].plan.relation == Relation.EDIT}
    shown = list(hits.items())[:SHEET]
    cell_w, cell_h, across = 3 * side + 16, side + 46, 4
    sheet = Image.new("RGB", (across * cell_w + 8, max(1, -(-len(shown) // across)) * cell_h + 8), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for place, (number, source) in enumerate(shown):
        x, y = 8 + place % across * cell_w, 8 + place // across * cell_h
        for column, png in enumerate((given[source].png, given[number].png, reference[number].png)):
            with Image.open(io.BytesIO(png)) as image:
                scaled = image.convert("RGB").resize((side, side), Image.Resampling.LANCZOS)
            sheet.paste(scaled, (x + column * (side + 2), y))
        words = [f"from: {prompts[source]}", f"K = {given[number].plan.start_step}: {prompts[number]}"]
        pen.multiline_text((x, y + side + 2), "\n".join(textwrap.shorten(one, 52) for one in words), "black", font)
    return sheet


def report(runs: Mapping[str, Mapping[str, Any]]) -> str:
    heads = ["run", "steps run", "re-rolls: variety", "across users: variety", "unrelated reused", "copying",
             "edits: likeness", "… from noise", "root share", "unseen from noise"]  # fmt: skip
    rows = [
        [
            name, round(run["steps_run"], 2), _said(run["variety"]["rerolls"]), _said(run["variety"]["across_users"]),
            f"{run['unrelated_reused']} of {run['unrelated']}", f"{_said(run['copying'])}, n = {run['copying_images']}",
            f"{_said(run['edits']['with_cache'])}, n = {run['edits']['images']}", _said(run["edits"]["from_noise"]),
            f"{run['root_share']:.3f}", f"{run['unseen_from_noise']:.0%}",
        ]
        for name, run in runs.items()
    ]  # fmt: skip
    kinds = [
        [name, kind, one["images"], one["reused"], round(one["steps_run"], 2),
         ", ".join(f"{relation}: {count}" for relation, count in one["relations"].items())]
        for name, run in runs.items()
        for kind, one in run["kinds"].items()
    ]  # fmt: skip
    return "\n\n".join(
        [table(heads, rows), table(["run", "kind", "images", "reused", "steps run", "relations"], kinds)]
    )


def _said(values: Sequence[float]) -> str:
    value, low, high = values
    return f"{value:.3f} ({low:.3f} to {high:.3f})" if value == value else "–"


def embeddings(given: Mapping[int, Given], encoder: Encoder) -> dict[int, Vector]:
    numbers, found = list(given), dict[int, Vector]()
    for start in range(0, len(numbers), BATCH):
        some = numbers[start : start + BATCH]
        images = encoder.images([given[number].png for number in some])
        found |= {number: vector_from(one.vector) for number, one in zip(some, images, strict=True)}
    return found


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", default="bundled:large")
    parser.add_argument("--users", type=int, default=20, help="users, of ten requests each")
    parser.add_argument("--steps", type=int, nargs="*", default=(50, 5), help="T of the runs with a cache")
    parser.add_argument("--seed", type=int, default=18, help="seed of the prompts")
    parser.add_argument("--rows", type=int, default=8, help="images that share a step")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--sheets", type=Path, default=Path("out/bench/variety"), help="folder of the contact sheets")
    asked = parser.parse_args(given)
    quiet()
    settings = Settings(large=asked.model, max_rows=asked.rows, log_level="error")
    configure_logging(settings.log_level)  # the planner would print a line per request
    on, card, encoder = machine(), served_card(settings), open_encoder(settings.encoder)
    painter, wanted = Painter(settings, asked.threads), users_requests(asked.users, asked.seed)
    asked.sheets.mkdir(parents=True, exist_ok=True)
    default = card.default_steps
    reference = asyncio.run(serve_users(wanted, settings, default, encoder, painter, cache=False))
    known, runs = embeddings(reference, encoder), dict[str, dict[str, Any]]()
    for steps in (*asked.steps, *([AUTO] if card.auto_steps else [])):
        name = f"T = {steps}" if steps else "T by the plan"
        print(f"{name}: {len(wanted)} requests of {asked.users} users", flush=True)
        served = asyncio.run(serve_users(wanted, settings, steps or None, encoder, painter, cache=True))
        runs[name] = figures_of(wanted, served, reference, embeddings(served, encoder), known)
        path = asked.sheets / f"edits-{steps or 'auto'}.png"
        contact_sheet(wanted, served, reference).save(path)
        print(f"edits beside their sources: {path}")
    print(report(runs))
    about = settings_of(asked) | {"weights_hash": card.weights_hash, "encoder_hash": encoder.hash}
    about |= {"reuse_rules": settings.reuse_rules, "alpha": settings.k_table_alpha, "root_share": settings.root_share}
    record("variety", {"runs": runs}, about, on=on, folder=asked.out)


if __name__ == "__main__":
    main()
