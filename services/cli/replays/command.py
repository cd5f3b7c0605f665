"""`afterimage replay`: replay a trace or a study file with any cache policy, with the decisions of serving."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from services.cli.display.words import wide
from services.cli.replays import real as replay_real
from shared.domain.errors import InvalidRequestError
from shared.runtime.progress import shown
from shared.runtime.settings import Settings

if TYPE_CHECKING:  # numpy and the encoder are imported when a trace is replayed, not when --help is read
    from services.replay.results.compare import Side
    from services.replay.study import Asked
    from services.replay.study_file import Study

Optional = typer.Option
DEFAULT_OUT, DEFAULT_EMBEDDINGS = Path("out/replay"), Path(".afterimage/embeddings")
SHOWN = ("policy", "steps saved", "of the bound", "hits", "evicted", "decisions/s")
SHOWN_TIMED = ("p50 s", "p99 s", "in 2× alone", "in 4× alone", "busy")
ALIKE = {
    "table", "table_encoder", "warmup", "skip", "limit", "rate_per_s", "recorded_times", "seed", "honour_sizes",
    "neighbours", "bound", "pair_table",
}  # fmt: skip
"""Keys of a study that `Asked` has under the same names."""


def replay(
    trace: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Trace: a .parquet, .csv or .jsonl file with columns prompt and user. With --compare: folders."
        ),
    ] = None,
    config: Annotated[
        Path | None, Optional("--config", "-c", help="Study file (.toml); docs/replay.md lists its keys.")
    ] = None,
    policies: Annotated[
        str | None, Optional(help="Policies, separated by commas: names that ship, or settings files (.toml).")
    ] = None,
    states: Annotated[
        str | None, Optional(help="Cache budgets, separated by commas, in latents of 512×512: 1000,10000.")
    ] = None,
    limit: Annotated[int | None, Optional(min=0, help="Requests to replay, warm-up included; 0: all.")] = None,
    seed: Annotated[int | None, Optional(min=0, help="Seed of the arrivals.")] = None,
    compare: Annotated[
        bool,
        Optional(
            "--compare",
            help="Compare replays of the same requests with the first one, without a trace. Each argument is a FOLDER, "
            "for every policy that both have, or a FOLDER:POLICY.",
        ),
    ] = False,
    out: Annotated[Path, Optional("--out", "-o", help="Folder for summary.json, plots and index.html.")] = DEFAULT_OUT,
    embeddings: Annotated[
        Path, Optional(help="Folder that keeps embeddings, neighbour lists and decisions.")
    ] = DEFAULT_EMBEDDINGS,
    anew: Annotated[bool, Optional("--anew", help="Do not reuse the decisions of earlier runs.")] = False,
) -> None:
    """Replay one trace with many cache policies, and write one folder that compares them.

    The serving code decides each request: the K table, the choice among candidates, admission and eviction. No image is
    generated, and the cache holds names only. A study file can do more: its table virtual_time runs workers in virtual
    time, and its table real serves each policy on real models. TRACE and options override the file.
    Embeddings, neighbour lists and decisions stay on disk, so an interrupted run resumes.

    [bold]Examples[/bold]

      afterimage replay load/traces/sessions_1200.jsonl --states 100,300,1000

      afterimage replay --config study.toml --out out/study

      afterimage replay --config bench/replay/entries/study.toml sd_trace_100k.parquet --limit 5000

      afterimage replay --compare out/replay:flexcache out/replay:afterimage

      afterimage replay --compare out/replay out/replay-with-another-table
    """
    given = trace or []
    if compare:
        _compare(wide(), given)
        return
    if len(given) > 1:
        named = " ".join(map(str, given))
        raise InvalidRequestError(
            "trace", "name one trace; give folders with --compare, several traces in a study file", named
        )
    from services.replay.study_file import read_study

    typed = {
        "traces": given or None,
        "policies": None if policies is None else _parts(policies),
        "states": None if states is None else _whole(states),
        "limit": limit,
        "seed": seed,
    }
    study = read_study(config, {name: value for name, value in typed.items() if value is not None})
    if not study.traces:
        raise InvalidRequestError(
            "trace", "name one trace, a study file that names one (--config), or folders with --compare"
        )
    for one in study.traces:
        _replay(study, one, out / one.stem if len(study.traces) > 1 else out, embeddings, anew)


def _replay(study: Study, trace: Path, out: Path, embeddings: Path, anew: bool) -> None:
    """Replay one trace into one folder."""
    from services.replay.results import report
    from services.replay.study import study as decide

    frames = replay_real.frames_of(study, trace) if study.real else study.frames
    served = replay_real.settings_of(study, frames) if study.real else None
    asked = _asked(study, trace, served, frames, {"embeddings": embeddings, "anew": anew})
    console = wide()
    left: Sequence[str] = ()
    with shown(console) as bar:
        if study.real and served:
            summary, decisions, left = replay_real.drawn(asked, served, out, study.real, bar)
        else:
            summary, decisions = decide(asked, bar)
    written = report.write(out, summary, decisions)
    _show(console, summary)
    if not any(path.suffix == ".png" for path in written):
        console.print(Text("no plots: matplotlib is not installed (pip install 'afterimage[train]')", style="yellow"))
    console.print(Text(f"Summary, plots and page: {out}"))
    if left:
        replay_real.broken_off(console, left)


def _asked(study: Study, trace: Path, served: Settings | None, frames: int, kept: dict[str, Any]) -> Asked:
    """Read the files that the study names; return its parameters."""
    from services.replay.policy import read_policy
    from services.replay.run import state_bytes
    from services.replay.simulated.pace import read_profile
    from services.replay.simulated.timed import Fleet
    from services.replay.study import Asked
    from services.replay.traces.trace import DEFAULT_SIZE

    timed = study.virtual_time
    encoder, alpha = study.encoder or "bundled:clip", study.alpha or 0.95
    if served:
        encoder, alpha = served.encoder, served.k_table_alpha
    each = replay_real.each(served, frames) if served else state_bytes(DEFAULT_SIZE)
    return Asked(
        trace=trace,
        policies=[(short, read_policy(name)) for short, name in study.of_policies.items()],
        states=_budgets(study, each),
        entries=bool(study.entries),
        fleet=Fleet(read_profile(timed.profile), timed.workers, timed.max_rows, timed.closed) if timed else None,
        schedule=replay_real.schedule_of(served, study.model, frames) if study.trace_steps else None,
        encoder=encoder,
        alpha=alpha,
        frames=frames,
        **study.model_dump(include=ALIKE),
        **kept,
    )


def _compare(console: Console, given: Sequence[Path]) -> None:
    """Print one table per folder or policy, compared with the first one."""
    from services.replay.results.compare import sides

    first, *others = sides([str(path) for path in given])
    for other in others:
        _beside(console, first, other)


def _beside(console: Console, first: Side, second: Side) -> None:
    from services.replay.results.compare import arrivals, compare

    shown = Table(title=f"{first} and {second}", title_justify="left")
    for place, name in enumerate(("policy", "budget", "share of", "first", "second", "difference", "95 % over users")):
        shown.add_column(name, justify="left" if place in (0, 2) else "right")
    for line in compare(first, second):
        shares = [f"{share:.2%}" for share in (line.first, line.second)]
        between = f"{line.low:+.2%} to {line.high:+.2%}"
        shown.add_row(line.policy, f"{line.states:,}", line.what, *shares, f"{line.second - line.first:+.2%}", between)
    console.print(shown)
    console.print(Text(f"Differences of the same requests, users resampled, {arrivals(first, second)}."))


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _whole(text: str) -> list[int]:
    try:
        return [int(part.replace("_", "")) for part in text.split(",")]
    except ValueError:
        raise InvalidRequestError("states", "must be whole numbers from 1 on, separated by commas", text) from None


def _budgets(study: Study, each: int) -> Sequence[int]:
    """Return the budgets in states or entries; a budget in bytes becomes the number of states of `each` bytes."""
    if study.bytes and min(study.bytes) < each:
        raise InvalidRequestError("bytes", f"must be at least {each}, the bytes of one state", min(study.bytes))
    return study.states or study.entries or [value // each for value in study.bytes]


def _show(console: Console, summary: dict[str, Any]) -> None:
    from services.replay.results.report import told

    timings = summary["timings"]
    for budget in summary["budgets"]:
        size = f", {budget['max_bytes'] / 1e6:,.1f} MB" if budget["max_bytes"] else ""
        shown = Table(title=f"{budget['states']:,} {budget['of']}{size}", title_justify="left")
        timed = any(one["timed"] for one in budget["policies"].values())
        names, rows = told((*SHOWN, *(SHOWN_TIMED if timed else ())), _rows(budget))
        for place, name in enumerate(names):
            shown.add_column(name, justify="left" if place == 0 else "right")
        for row in rows:
            shown.add_row(*row)
        console.print(shown)
    if taken := summary["taken_over"]:
        named = ", ".join(f"{one['policy']} at {one['states']:,}" for one in taken)
        console.print(Text(f"Decisions of an earlier run were reused (--anew decides again): {named}."))
    console.print(Text(summary["thresholds"]))
    if timings is None:
        return
    console.print(
        Text(
            f"Embeddings {timings['embed_s']:.0f} s ({timings['encoded']:,} of {timings['texts']:,} prompts were new), "
            f"neighbours {timings['neighbours_s']:.0f} s, bound {timings['bound_s']:.0f} s."
        )
    )


def _rows(budget: dict[str, Any]) -> Sequence[Sequence[str]]:
    from services.replay.results.compare import label

    upper = (budget["bound"] or {}).get("steps_saved")
    rows = [
        (
            label(name, one["surrogate"]),
            f"{one['steps_saved']:.2%}",
            f"{one['steps_saved'] / upper:.1%}" if upper and one["bounded"] else "–",
            f"{one['hit_rate']:.2%}",
            f"{one['evictions']:,}",
            "–" if one["decisions_per_s"] is None else f"{one['decisions_per_s']:,.0f}",
            *(_timed(one["timed"]) if one["timed"] else ()),
        )
        for name, one in budget["policies"].items()
    ]
    return [*rows, ("offline bound", f"{upper:.2%}", "100.0%", "", "", "")] if upper else rows


def _timed(one: dict[str, Any]) -> Sequence[str]:
    slo = [f"{share:.1%}" for share in one["slo"].values()]
    busy = "–" if one["busy"] is None else f"{one['busy']:.0%}"
    return (f"{one['latency_s']['p50']:.2f}", f"{one['latency_s']['p99']:.2f}", *slo, busy)
