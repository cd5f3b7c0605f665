"""FlexCache's figures on replays of clips, beside the paper's: Figs. 4, 7, 12, 13, 16, 17, 18, 22 and Table 1.

    python -m bench.replays.clip_replays                            (the project's own sessions of clips)
    python -m bench.replays.clip_replays --trace FILE.parquet --encoder minilm --name clip_replays_synthetic

The protocol is the paper's (§6.1, §6.2.2): requests fill the cache, then the counted ones follow. The budget is the
bytes that FlexCache's states of the fill take; smaller budgets are a fifth, a 25th and a 125th of these bytes. Every
policy has equal bytes, which include masks. Workers run in virtual time and are never idle; a step takes as long as
that of a clip of 16 frames on two cores.

K comes from NIRVANA's Fig. 10 for whole prompts and pairs, whatever the encoder, at T = 50: the paper's settings.
`bench.replays.clip_equal` replays the same policies with the model's measured tables. Embeddings, neighbour lists and
decisions stay on disk; `--count` and `--fill` give a shorter run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.measuring.recording import command_line, machine, record, settings_of, share, table
from bench.replays import clip_figures as figures
from bench.replays.clip_figures import Figures
from bench.replays.clip_plots import plot
from bench.replays.shapes import PAPERS
from load.sessions import CLIPS, make_trace, write_trace
from services.replay.kept import Kept
from services.replay.policy import PolicySettings, read_policy
from services.replay.results.figures import Run
from services.replay.run import Offered, Options, prepare, replay
from services.replay.simulated.pace import Profile
from services.replay.simulated.timed import Fleet
from services.replay.traces.clip_bytes import FILE as CLIP_BYTES
from services.replay.traces.encoders import TextEncoder, open_encoder
from services.replay.traces.load import Load
from services.replay.traces.trace import Trace, read_trace
from shared.models.k_table import FIG_10, KTable
from shared.runtime.progress import Bar, shown

STEP_S, DECODE_S = 0.134, 0.0
"""Seconds of a step of 16 frames on two cores; the rest of a clip is less than the noise of that measurement."""
FLEET = Fleet(Profile("motion", (1,), (STEP_S,), DECODE_S), 1, 1, closed=True)
DIVISORS = (125, 25, 5, 1)
NIRVANA, FLEXCACHE, OURS = "nirvana-video", "flexcache-video", "afterimage-video"
STAGES = {
    "latents": NIRVANA,
    "+ compression": "nirvana-video-keyframes",
    "+ LRBU, hits kept": "flexcache-video-whole",
    "+ pairs": FLEXCACHE,
}
"""Fig. 17: what FlexCache adds to NIRVANA, one after the other → our policies."""
EVICTIONS = ("fifo", "lru", "lcbfu", "lrbu")
"""Table 1: FlexCache with each eviction."""
SHOWN = ("hit_rate", "steps_saved")
COMPARED = (*STAGES.values(), OURS, "afterimage-video-residual")
PAPER = Path(__file__).parent / "paper_clips.json"
"""The numbers of these figures in the paper's text; those of Table 1 are in paper_shapes.json."""


def own_trace(count: int, seed: int, folder: Path) -> Path:
    """Return the file of the project's own sessions of clips; write it if it is missing."""
    path = folder / f"clip_sessions_{count}_{seed}.jsonl"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_trace(path, make_trace(count, seed, CLIPS))
    return path


def offered(asked: argparse.Namespace) -> Trace:
    """Return the requests of the fill and those that count."""
    count = asked.fill + asked.count
    trace = read_trace(asked.trace or own_trace(count, asked.seed, asked.work))[:count]
    if len(trace) < count:
        raise SystemExit(f"--count: the trace has {len(trace):,} requests, and fill and count need {count:,}")
    return replace(trace, frames=trace.frames if trace.frames > 1 else asked.frames)


class Replays:
    """Replays of one trace, in virtual time; finished ones are read from disk."""

    def __init__(self, trace: Trace, encoder: TextEncoder, asked: argparse.Namespace, bar: Bar) -> None:
        self._trace, self._encoder, self._asked, self._bar = trace, encoder, asked, bar
        self.load = self.load_by(FIG_10)
        """Load with the paper's table for whole prompts and pairs."""

    def load_by(self, own: KTable, of_pairs: KTable | None = None) -> Load:
        """Return the load with these tables, at their T."""
        options = Options(own, self._asked.fill, parts=True, pair_table=of_pairs)
        load = prepare(self._trace, self._encoder, self._asked.embeddings, options, self._bar).load
        return replace(load, steps=own.steps)

    def run(self, name: str, policy: PolicySettings, room: int, load: Load | None = None) -> Run:
        """Replay one policy in `room` bytes; load: another one than the paper's settings, for other tables or T."""
        load = load or self.load
        kept = Kept(self._asked.embeddings / self._encoder.hash, load)
        (run,) = replay(load, [(name, policy)], Offered([room], fleet=FLEET, kept=kept), self._bar)
        return run

    def figures(self, run: Run, steps: int = 50) -> Figures:
        """Return the run's figures; throughput is against all 50 steps without a cache."""
        return figures.of_run(run, self._asked.fill, steps, FLEET.profile.alone_s(50))


def compared(replays: Replays, rooms: Sequence[int]) -> dict[str, dict[str, Figures]]:
    """Return the policies at each budget: budget → policy → figures."""
    return {
        str(room): {name: replays.figures(replays.run(name, read_policy(name), room)) for name in COMPARED}
        for room in rooms
    }


def table_1(replays: Replays, rooms: Sequence[int]) -> dict[str, dict[str, Figures]]:
    """Return FlexCache with each eviction at each budget."""
    base = read_policy(FLEXCACHE)
    found = {}
    for room in rooms:
        found[str(room)] = {
            evict.upper(): replays.figures(replays.run(evict, base.model_copy(update={"evict": evict}), room))
            for evict in EVICTIONS
        }
    return found


def all_figures(replays: Replays, asked: argparse.Namespace) -> dict[str, Any]:
    """Replay everything and return every figure."""
    load, unlimited = replays.load, {"unlimited": True}
    whole = replays.run("growing", read_policy(NIRVANA).model_copy(update=unlimited), 1)
    every = replays.run("unlimited", read_policy(FLEXCACHE).model_copy(update=unlimited), 1)
    room = int(every.decisions.bytes[asked.fill - 1])
    rooms = [room // divisor for divisor in DIVISORS]
    by_room = compared(replays, rooms)
    paper, shapes = (json.loads(path.read_text(encoding="utf-8")) for path in (PAPER, PAPERS))
    measured = json.loads(CLIP_BYTES.read_text(encoding="utf-8"))
    at_full = by_room[str(room)]
    return {
        "paper": paper | {"table_1": shapes["flexcache_table_1"]},
        "requests": {"fill": asked.fill, "counted": asked.count, "frames": load.trace.frames},
        "room": room,
        "rooms": rooms,
        "state_bytes": int(load.state_bytes[0]),
        "with_parts": figures.with_parts(load),
        "fig_4": figures.cache_sizes(whole.decisions, load.steps, load.trace.frames),
        "fig_7": {"levels": figures.LEVELS, **figures.similarities(load, asked.fill)},
        "fig_12": figures.hottest(every.decisions, asked.fill),
        "fig_13": figures.breakdown(measured),
        "by_room": by_room,
        "unlimited": replays.figures(every),
        "table_1": table_1(replays, rooms),
        "fig_22": {
            "no cache": figures.cost(0.0, extraction=False, cache=False),
            **{
                name: figures.cost(one["steps_saved"], extraction=read_policy(name).pairs)
                for name, one in at_full.items()
            },
        },
    }


def report(found: dict[str, Any]) -> str:
    """Return the tables of bench/README.md."""
    paper, rooms, full = found["paper"], found["rooms"], str(found["room"])
    part = {str(room): share(room / found["room"], 1) for room in rooms}
    blocks = [f"Budget: {found['room'] / found['state_bytes']:,.0f} fp16 states of a clip; {found['requests']}"]
    rows = [
        [f"`{name}`", *(f"{one[name]['throughput']:.3f}" for one in found["by_room"].values()),
         share(found["by_room"][full][name]["hit_rate"], 1), share(found["by_room"][full][name]["of_pairs"], 1),
         share(found["by_room"][full][name]["steps_saved"], 1)]
        for name in COMPARED
    ]  # fmt: skip
    blocks.append(table(["throughput (no cache = 1)", *part.values(), "hits", "by pairs", "steps saved"], rows))
    rows = [
        [
            f"**FlexCache**, {gb:,} GB",
            *(_pair(*(paper["table_1"][of][n.upper()][at] for of in SHOWN)) for n in EVICTIONS),
        ]
        for at, gb in enumerate(paper["table_1"]["gb"])
    ]
    for room, ones in found["table_1"].items():
        rows.append([part[room], *(_pair(one["hit_rate"], one["steps_saved"]) for one in ones.values())])
    blocks.append(table(["hits / saved, %", *(name.upper() for name in EVICTIONS)], rows))
    levels = found["fig_7"]["levels"]
    rows = [
        [name, *(share(value, 1) for value in found["fig_7"][name])]
        for name in ("whole", "object", "background", "pair", "best")
    ]
    blocks.append(table(["nearest prompt above", *map(str, levels)], rows))
    ks = sorted({int(k) for name in COMPARED for k in found["by_room"][full][name]["ks"]})
    rows = [[f"`{n}`", *(share(found["by_room"][full][n]["ks"].get(str(k), 0.0), 1) for k in ks)] for n in COMPARED]
    blocks.append(table(["steps skipped", *map(str, ks)], rows))
    first = found["fig_22"]["no cache"]
    rows = [[name, f"{one:.4f}", share(1 - one / first, 1)] for name, one in found["fig_22"].items()]
    blocks.append(table(["dollars a clip", "cost", "saved"], rows))
    return "\n\n".join(blocks)


def _pair(first: float, second: float) -> str:
    return f"{100 * first:.1f} / {100 * second:.1f}"


def replay_command_line(about: str | None, name: str) -> argparse.ArgumentParser:
    """Return the command line of a replay of clips. name: that of its result files."""
    parser = command_line(about)
    parser.add_argument("--trace", type=Path, help="file of requests (default: the project's own sessions of clips)")
    parser.add_argument("--fill", type=int, default=10_000, help="requests that fill the cache")
    parser.add_argument("--count", type=int, default=50_000, help="requests that count")
    parser.add_argument("--frames", type=int, default=16, help="frames of a clip, for a trace without that column")
    parser.add_argument("--seed", type=int, default=65, help="seed of the own trace")
    parser.add_argument("--encoder", default="bundled:clip", help="as in a study of `afterimage replay`")
    parser.add_argument("--name", default=name, help="name of the result files")
    parser.add_argument("--work", type=Path, default=Path("out/bench"), help="folder of the generated trace")
    parser.add_argument("--embeddings", type=Path, default=Path(".afterimage/embeddings"), help="as for a replay")
    return parser


def main(given: Sequence[str] | None = None) -> None:
    parser = replay_command_line(__doc__, "clip_replays")
    asked = parser.parse_args(given)
    on, encoder = machine(), open_encoder(asked.encoder)
    with shown() as bar:
        replays = Replays(offered(asked), encoder, asked, bar)
        found = all_figures(replays, asked)
    print(report(found))
    settings = settings_of(asked) | {"trace": asked.trace.name if asked.trace else "load.sessions, CLIPS"}
    record(asked.name, found, settings | {"encoder_hash": encoder.hash, "step_s": STEP_S}, on=on, folder=asked.out)
    plot(found, asked.out / f"{asked.name}.png")


if __name__ == "__main__":
    main()
