"""The shape of MoDM's Fig. 10 in virtual time: 16 workers as slow as the paper's, rates from 6 a minute upwards.

    python -m bench.virtual_time.paper_rates

Served against offered requests for vanilla, our latents, and MoDM in quality mode with two small models, best first.
Large models refine while they keep up, then SDXL, then SANA (§7.1). Hits and k are our own (bench.trace_plans), so only
the shape compares. ASSUMPTIONS lists the assumptions; the results repeat them.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from bench.measuring.plotting import pyplot_or_none
from bench.measuring.recording import machine, record, settings_of, table, virtual_command_line
from bench.trace_plans import Hits, load_hits
from bench.virtual_time.virtual_systems import Modm, Run, everyone_may, latent, miss, plain, steady
from services.global_monitor.decision import Rules
from services.replay.simulated.pace import STEPS, Profile
from shared.domain.types import Plan, PlanSource

LARGE, SDXL, SANA = "sd3.5-large", "sdxl", "sana"
WORKERS = 16
SECONDS = {LARGE: 96.0, SDXL: 36.0, SANA: 19.2}
"""Seconds per image on an idle worker: see ASSUMPTIONS."""
RATES = (6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 30, 35, 40, 50, 60)
"""Offered requests per minute; the paper goes to 26."""
SUSTAINED = 0.97
"""Served share of the offered requests from which a rate counts as sustained."""
TITLES = {"vanilla": "vanilla (SD3.5L)", "nirvana": "latents (ours)", "modm": "MoDM"}
ASSUMPTIONS = (
    "The paper prints no latencies. SD3.5L's 96 s follow from §7.1: vanilla on 16 MI210 serves at most about 10 a "
    "minute. A step of SDXL and of SANA is taken to cost as much less as they have fewer parameters (§6: 8, 3 and "
    "1.6 B), 36 and 19.2 s an image: what a step really costs depends on more (SANA's latent is much smaller), so the "
    "rates at which regimes change are not the paper's.",
    "One image at a time on each worker, T = 50, as in the paper; encoding and decoding are in those seconds, and a "
    "hit takes (T − k)/T of them.",
    "Hits and k are ours on our own session trace, in its order and again: nearly every request is a hit there with a "
    "small k, where the paper's are fewer with larger ones. Every model may continue after the k that our small "
    "model's table allows; the paper has one table for all.",
    "The latents are our own tier, not NIRVANA's settings: they save more than its paper's 20 %.",
    "All models stay loaded on every worker; a worker that is to switch finishes its image first.",
)


def speeds_of(seconds: Mapping[str, float]) -> dict[str, Profile]:
    return {model: Profile(model, (1,), (each / STEPS,)) for model, each in seconds.items()}


def latents_of(hits: Hits) -> list[Plan]:
    return [
        latent(LARGE, one.start_step) if one.source == PlanSource.LATENT else miss(LARGE) for one in hits.served
    ]  # fmt: skip


def level(
    per_minute: float, plans: Mapping[str, Sequence[Plan]], speeds: dict[str, Profile], given: argparse.Namespace
) -> dict[str, Any]:
    """Return the requests served per minute once settled, and the models that served them."""
    until, settle = 3600 * given.hours, 1800 * given.hours
    rules = Rules(LARGE, (SDXL, SANA), mode="quality", period_s=given.period_s, window_s=max(given.period_s, 600.0))

    def arrivals() -> Any:
        return steady(per_minute / 60, until, given.seed)

    runs = {
        name: plain(arrivals(), plans[name], speeds, given.workers, until, model=LARGE, max_rows=1)
        for name in ("vanilla", "nirvana")
    }
    runs["modm"] = Modm(arrivals(), plans["modm"], speeds, given.workers, rules, until, max_rows=1)()
    offered = sum(at >= settle for _, at in arrivals()) / (until - settle) * 60
    return {
        "offered_per_min": per_minute,
        "arrived_per_min": offered,
        "served_per_min": {name: _late(run, settle) / (until - settle) * 60 for name, run in runs.items()},
        "refined_by": dict(
            Counter(one.model for one in runs["modm"].done if one.at >= settle and one.request.is_hit)
        ),
        "allocation": dict(Counter(runs["modm"].decisions[-1].models.values())),
        "mode": runs["modm"].decisions[-1].mode,
        "switches": runs["modm"].switches,
        "small_model_changes": small_changes(runs["modm"]),
    }  # fmt: skip


def small_changes(run: Run) -> int:
    """Count the monitor's changes from one small model to the other."""
    chosen = [one.target.small for one in run.decisions if one.switches]
    return sum(before != after for before, after in pairwise(chosen))


def _late(run: Run, settle: float) -> int:
    return sum(one.at >= settle for one in run.done)


def regime(one: Mapping[str, Any]) -> str:
    """Return the smallest model that does at least a tenth of the hits."""
    total = sum(one["refined_by"].values()) or 1
    return next((model for model in (SANA, SDXL) if one["refined_by"].get(model, 0) > total / 10), LARGE)


def spans(levels: Sequence[Mapping[str, Any]]) -> list[tuple[str, float, float]]:
    """Return (model, from, to) for each range of rates with one regime. A range ends half-way to the next rate; a model
    may have two ranges."""
    at = [one["offered_per_min"] for one in levels]
    edges = [at[0], *((one + other) / 2 for one, other in pairwise(at)), at[-1]]
    found: list[tuple[str, float, float]] = []
    for model, places in groupby(range(len(at)), lambda place: regime(levels[place])):
        here = list(places)
        found.append((model, edges[here[0]], edges[here[-1] + 1]))
    return found


def figures_of(levels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    highest = dict.fromkeys(TITLES, 0.0)
    for one in levels:
        for name in TITLES:
            if one["served_per_min"][name] >= SUSTAINED * one["arrived_per_min"]:
                highest[name] = max(highest[name], one["offered_per_min"])
    most = {name: max(one["served_per_min"][name] for one in levels) for name in TITLES}
    first: dict[str, float] = {}
    for one in levels:
        first.setdefault(regime(one), one["offered_per_min"])
    return {
        "levels": list(levels), "most_served_per_min": most, "highest_sustained_per_min": highest,
        "nirvana_over_vanilla": most["nirvana"] / most["vanilla"], "regime_from_per_min": first,
    }  # fmt: skip


def report(figures: Mapping[str, Any]) -> str:
    rows = [
        [f"{one['offered_per_min']:g}", *(f"{one['served_per_min'][name]:.1f}" for name in TITLES), regime(one),
         ", ".join(f"{count} {model}" for model, count in sorted(one["allocation"].items())),
         one["switches"], one["small_model_changes"]]
        for one in figures["levels"]
    ]  # fmt: skip
    heads = ["offered /min", *(f"{title} /min" for title in TITLES.values()), "smallest that refines", "allocation",
             "workers switched", "small model changed"]  # fmt: skip
    most, held = figures["most_served_per_min"], figures["highest_sustained_per_min"]
    return (
        f"{table(heads, rows)}\n\nvanilla serves {most['vanilla']:.1f} a minute at most, our latents "
        f"{figures['nirvana_over_vanilla']:.2f} times that; the highest rate of these that MoDM sustains is "
        f"{held['modm']:g} (the paper holds 26)"
    )


def plot(figures: Mapping[str, Any], path: Path) -> None:
    pyplot = pyplot_or_none()
    if pyplot is None:
        return
    levels = figures["levels"]
    at = [one["offered_per_min"] for one in levels]
    figure, axes = pyplot.subplots(figsize=(7.5, 4.2), layout="constrained")
    axes.plot(at, at, color="black", linestyle=":", label="offered")
    for name, title in TITLES.items():
        axes.plot(at, [one["served_per_min"][name] for one in levels], marker="o", markersize=3, label=title)
    for model, start, end in spans(levels):
        axes.axvspan(start, end, alpha=0.08, color=f"C{(LARGE, SDXL, SANA).index(model)}")
        axes.text(
            (start + end) / 2, 0.98, f"{model} refines", ha="center", va="top", fontsize=7, rotation=90,
            transform=axes.get_xaxis_transform(),
        )  # fmt: skip
    axes.set(xlabel="offered requests per minute", ylabel="served a minute", xlim=(at[0], at[-1]), ylim=(0, None))
    axes.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = virtual_command_line(__doc__)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES), help="offered requests per minute")
    parser.add_argument("--sdxl-s", type=float, default=SECONDS[SDXL], help="seconds per image")
    parser.add_argument("--sana-s", type=float, default=SECONDS[SANA], help="seconds per image")
    parser.add_argument("--hours", type=float, default=8.0, help="minutes of virtual time; the second half counts")
    given = parser.parse_args(arguments)
    on, speeds = machine(), speeds_of({LARGE: SECONDS[LARGE], SDXL: given.sdxl_s, SANA: given.sana_s})
    plans = {
        "vanilla": [miss(LARGE)],
        "nirvana": latents_of(load_hits("nirvana", given.plans)),
        "modm": everyone_may(load_hits("modm", given.plans), (SANA, SDXL, LARGE), LARGE),
    }
    figures = figures_of([level(rate, plans, speeds, given) for rate in given.rates])
    print(report(figures))
    given.out.mkdir(parents=True, exist_ok=True)
    plot(figures, given.out / "paper_rates.png")
    settings = {**settings_of(given), "assumptions": ASSUMPTIONS}
    record("paper_rates", figures, settings, on=on, folder=given.out)


if __name__ == "__main__":
    main()
