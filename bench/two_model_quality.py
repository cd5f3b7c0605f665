"""Image quality with two models in throughput mode, where quality is at risk (MoDM §7.3, Table 2, Fig. 14).

    python -m bench.two_model_quality                       (two hours of one core; continues after an interruption)
    python -m bench.two_model_quality --draw-only --systems vanilla nirvana_saving       (at the same time, on a
    second core)

Every system serves the same requests. Its images get a Fréchet distance in the bundled encoder's features, a CLIP
score, and the judge net's attributes. The reference is the large model's images of the same prompts at other seeds.
Vanilla is scored against the same reference, so its distance shows the effect of chance alone. Throughput comes from
bench.virtual_time.two_models. Distance and throughput give the Pareto plot of Fig. 14. The other points of that figure
(§7.4: which images are cached, how many, and the thresholds) are added if `--systems` names them. The cache begins with
`--warm` images of the large model.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.measuring.frechet import Features
from bench.measuring.judging import JUDGE, judge_pictures, open_encoder
from bench.measuring.plotting import pyplot_or_none
from bench.measuring.quiet import quiet
from bench.measuring.recording import RESULTS, command_line, machine, read_results, record, table
from bench.trace_plans import MODM, NIRVANA, RETRIEVAL
from bench.traced.painting import Painter
from bench.traced.quality_figures import PAIRS, Scored, figures_of
from bench.traced.systems import System
from bench.traced.traced_systems import SystemRun, main_size, same_work
from bench.virtual_time.two_models import FEWER_STEPS
from bench.virtual_time.virtual_systems import bundled_speeds
from load.sessions import SHIPPED_SEED, Prompt, make_trace
from services.embedder.encoder import Encoder
from services.replay.simulated.pace import STEPS
from shared.domain.errors import ConfigurationError
from shared.domain.types import vector_from
from shared.models.card_lookup import served_cards
from shared.runtime.progress import Remaining
from shared.runtime.settings import Settings

RAISED_BY = 0.045
"""MoDM raises thresholds by .01 (Fig. 14). The same raise in the bundled encoder's range: .01 · (.652 + .192) / (.2855
− .0975). Each range goes from unrelated images to a prompt's own image (services/replay/traces/picture_similarity.json
and surrogate.py)."""
REFERENCE = System("reference", "large at other seeds", other_seeds=True)
SYSTEMS = (
    REFERENCE,
    System("vanilla", "vanilla large"),
    System("small", "small alone", model="small", changes={"small": "bundled:small"}),
    System("fewer_steps", f"large with {FEWER_STEPS} steps", steps=FEWER_STEPS),
    NIRVANA,
    replace(NIRVANA, name="nirvana_saving", title="latents (ours) at the most saving", savings=1.0),
    RETRIEVAL,
    MODM,
    *(
        replace(MODM, name=f"modm_{name}", title=f"MoDM, {title}", changes={**MODM.changes, **changes})
        for name, title, changes in (
            ("large_only", "images of the large model only", {"image_tier": "large"}),
            ("window", "the last 256 images", {"picture_max_count": 256}),
            ("lower", "α = .9", {"image_k_table_alpha": 0.9}),
        )
    ),
    replace(MODM, name="modm_higher", title=f"MoDM, thresholds + {RAISED_BY:g}", raised_by=RAISED_BY),
)
USUAL = ("reference", "vanilla", "small", "fewer_steps", "nirvana_saving", "modm")
NEEDED = frozenset({"reference", "vanilla", "small", "modm"})
"""Systems that the goals need."""
AT_A_TIME = 32
ASSUMPTIONS = (
    "All at 64×64 and the T of the settings (the fewer-steps baseline apart), batches of up to eight; windows of "
    "requests generated together cannot start from each other's images.",
    "Equal saving: latents cannot save what a small model saves. Its second row has the savings knob at its end, "
    "`cost` beside each says what was spent: a worker's seconds a request in full batches by the measured latency, "
    "vanilla's = 1.",
    "The distance is biased by the number of images (it is above 0 for two sets of one model). All systems have the "
    "same bias: the same number of images, against one reference.",
)


def features_of(run: SystemRun, indices: Sequence[int], encoder: Encoder) -> Features:
    """Return the images' features; they are stored beside the images under the encoder's hash."""
    path = run.folder / f"features-{encoder.hash}-{len(indices)}.npy"
    if path.is_file():
        kept: Features = np.load(path)
        return kept
    rows = []
    for start in range(0, len(indices), AT_A_TIME):
        some = indices[start : start + AT_A_TIME]
        rows += [vector_from(one.vector) for one in encoder.images([run.picture(index) for index in some])]
    found = np.stack(rows).astype(np.float64)
    aside = path.with_suffix(".part")
    with aside.open("wb") as file:
        np.save(file, found)
    aside.replace(path)
    return found


def report(figures: Mapping[str, Any]) -> str:
    titles = {one.name: one.title for one in SYSTEMS}
    rows = [
        [titles[name], f"{1000 * one['distance']:.2f}",
         "{:.2f}–{:.2f}".format(*(1000 * value for value in one["distance_of_halves"])),
         f"{one['clip_ratio']:.3f}", *(f"{one['accuracy'].get(key, float('nan')):.3f}" for key in
         ("object", "background", "all")), f"{one['cost']:.3f}", f"{one['hit_rate']:.1%}"]
        for name, one in figures["systems"].items()
    ]  # fmt: skip
    heads = ["system", "distance × 1000", "of halves, 5–95 %", "CLIP ÷ vanilla's", "object", "background", "all",
             "cost", "hits"]  # fmt: skip
    pairs = [
        [f"{titles[one]} − {titles[other]}", *(_interval(differ.get(name), scale) for name, scale in
         (("distance", 1000), ("clip", 1), ("all", 1)))]
        for one, other in PAIRS if (differ := figures["differences"].get(f"{one} - {other}"))
    ]  # fmt: skip
    beside = table(["difference (95 %)", "distance × 1000", "CLIP score", "all attributes"], pairs)
    said = "\n".join(f"{goal}: {'met' if met else 'missed'}" for goal, met in figures["goals"].items())
    return f"{figures['pictures']} images each\n\n{table(heads, rows)}\n\n{beside}\n\nMoDM in throughput mode: {said}"


def _interval(found: tuple[float, float, float] | None, scale: float) -> str:
    return "" if found is None else "{:+.3f} ({:+.3f} to {:+.3f})".format(*(scale * value for value in found))


def throughput(figures: Mapping[str, Any], folder: Path) -> dict[str, float]:
    """Return throughput in the largest fleet of bench.virtual_time.two_models, vanilla = 1; 1 / cost for missing
    systems."""
    names = {"modm": "modm_throughput"}
    known = _speedups(folder)
    return {name: known.get(names.get(name, name)) or 1 / one["cost"] for name, one in figures["systems"].items()}


def _speedups(folder: Path) -> dict[str, float]:
    try:
        fleets = read_results("two_models", folder)["figures"]["fleets"]
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"--throughput: no two_models.json in {folder}; run bench.virtual_time.two_models first"
        ) from error
    return {name: one["speedup"] for name, one in fleets[-1]["systems"].items()}


def plot(figures: Mapping[str, Any], speedups: Mapping[str, float], path: Path) -> None:
    """Plot distance against 1/throughput: lower and further left is better (Fig. 14)."""
    pyplot = pyplot_or_none()
    if pyplot is None:
        return
    titles = {one.name: one.title for one in SYSTEMS}
    points = {name: (1 / speedups[name], 1000 * one["distance"]) for name, one in figures["systems"].items()}
    figure, axes = pyplot.subplots(figsize=(6.5, 4.5), layout="constrained")
    for name, (x, y) in points.items():
        axes.plot(x, y, "o")
        axes.annotate(titles[name], (x, y), textcoords="offset points", xytext=(5, 4), fontsize=8)
    front = sorted(point for point in points.values() if not any(_beats(other, point) for other in points.values()))
    axes.plot(*zip(*front, strict=True), color="grey", linestyle=":", linewidth=1, label="Pareto front")
    right = 1.3 * max(x for x, _ in points.values())  # space for the labels
    axes.set(xlabel="1 / throughput, vanilla = 1", ylabel="Fréchet distance in CLIP features × 1000", xlim=(0, right))
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one != other and one[0] <= other[0] and one[1] <= other[1]


def chosen(given: argparse.Namespace) -> list[System]:
    """Return the requested systems in the given order, at the given T; the fewer-steps baseline keeps its own T."""
    of = {one.name: one if one.steps != STEPS else replace(one, steps=given.steps) for one in SYSTEMS}
    return [of[name] for name in dict.fromkeys(given.systems)]


async def draw(given: argparse.Namespace, rows: Sequence[Prompt], settings: Settings, encoder: Encoder) -> None:
    """Generate every system's images; systems that another process generates come last, after that process is done."""
    elsewhere = [one for one in chosen(given) if not await _drawn(one, given, rows, settings, encoder, wait=False)]
    for system in elsewhere:
        print(f"{system.title}: another process generates its images; waiting", flush=True)
        await _drawn(system, given, rows, settings, encoder, wait=True)


async def _drawn(
    system: System,
    given: argparse.Namespace,
    rows: Sequence[Prompt],
    settings: Settings,
    encoder: Encoder,
    *,
    wait: bool,
) -> bool:
    """Return whether the system's images are complete; False if another process generates them and `wait` is off."""
    run = SystemRun(given.work, system)
    with run.alone(wait=wait) as alone:
        first = 0 if system.cached else given.warm
        left = len(rows) - first - sum(index >= first for index in run.answers())
        if alone and left > 0:
            painter = Painter(settings.model_copy(update=dict(system.changes)), given.threads)
            await run.draw(rows, given.warm, settings, encoder, painter, Remaining(system.title, left).advance)
    return alone


def score(given: argparse.Namespace, rows: Sequence[Prompt], encoder: Encoder) -> dict[str, Scored]:
    indices = list(range(given.warm, len(rows)))
    prompts, scenes, found = [row.prompt for row in rows], [row.scene for row in rows], {}
    for system in chosen(given):
        run, begun = SystemRun(given.work, system), time.monotonic()
        answers = run.answers()
        found[system.name] = Scored(
            {index: answers[index] for index in indices},
            features_of(run, indices, encoder),
            {}
            if system.name == REFERENCE.name
            else judge_pictures(run.pictures(indices), prompts, scenes, encoder, given.judge),
        )
        print(f"{system.title}: scored in {time.monotonic() - begun:.0f} s", flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--count", type=int, default=2048, help="counted requests")
    parser.add_argument(
        "--warm", type=int, default=256, help="first requests, generated by the large model and not counted"
    )
    parser.add_argument("--steps", type=int, default=STEPS, help="T; a multiple of 10, so that every k is whole")
    parser.add_argument("--systems", nargs="+", choices=[one.name for one in SYSTEMS], default=list(USUAL))
    parser.add_argument(
        "--draw-only",
        action="store_true",
        help="generate without scores, while another process generates other systems",
    )
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--judge", type=Path, default=JUDGE, help="folder of the judge net")
    parser.add_argument(
        "--work", type=Path, default=Path("out/bench/two_model_quality"), help="folder of the images so far"
    )
    parser.add_argument("--throughput", type=Path, default=RESULTS, help="folder of two_models.json")
    given = parser.parse_args(arguments)
    if not given.draw_only and (lacking := NEEDED - set(given.systems)):
        parser.error(f"--systems: must include {', '.join(sorted(lacking))}, or give --draw-only")
    quiet()
    settings, on = Settings(log_level="error", predictor="always", device="cpu"), machine()
    rows = main_size(make_trace(given.warm + given.count, SHIPPED_SEED))
    encoder, speeds = open_encoder(settings.encoder), bundled_speeds()
    if not given.draw_only:
        _speedups(given.throughput)  # report missing figures before two hours of work, not after
    cards = served_cards(settings.model_copy(update=dict(MODM.changes)))
    facts = {
        "count": given.count, "warm": given.warm, "trace_seed": SHIPPED_SEED, "steps": given.steps,
        "encoder_hash": encoder.hash, "weights_hashes": {name: card.weights_hash for name, card in cards.items()},
        "alpha": settings.k_table_alpha, "image_alpha": settings.image_k_table_alpha,
    }  # fmt: skip
    same_work(given.work, facts)
    asyncio.run(draw(given, rows, settings, encoder))
    if given.draw_only:
        return
    users = {index: row.user for index, row in enumerate(rows)}
    figures = figures_of(score(given, rows, encoder), speeds, users, given.steps)
    speedups = throughput(figures, given.throughput)
    print(report(figures))
    told = {**facts, "assumptions": ASSUMPTIONS}
    record("two_model_quality", {**figures, "throughput": speedups}, told, on=on, folder=given.out)
    plot(figures, speedups, given.out / "two_model_quality.png")


if __name__ == "__main__":
    main()
