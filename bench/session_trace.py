"""The session trace with the cache, without it, and without it at the mean number of steps that the cache ran.

    python -m bench.session_trace --count 1000
    python -m bench.session_trace --count 1000 --steps auto

The all-in-one service runs in this process, and every request goes through real gRPC. An interrupted run continues
where it stopped (work directory `--work`; `--fresh` begins again). Users send in a closed loop with `--concurrency`
requests in flight, so the time is the time to generate everything. Both runs use the same prompts and batching and
start warm. They alternate block by block, so other load on the machine affects both equally.

With `--steps auto` the plan chooses T of each request with the cache. Without the cache every image runs the model's
default T, which is the reference of quality. The results are then `session_trace_auto.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.measuring.judging import JUDGE, judge_pictures, look_against, open_encoder
from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record
from bench.traced import trace_quality
from bench.traced.closed_loop import Drawn, play
from bench.traced.trace_figures import figures_of, plots, report
from load.sessions import MAIN_SIZE, SHIPPED, Prompt, read_trace
from services.cli.embedded import embedded
from shared.client import AsyncClient, Picture
from shared.domain.errors import ConfigurationError
from shared.domain.types import Size
from shared.models import served_card
from shared.models.k_table import FIG_10
from shared.models.tables_in_force import shipped_table
from shared.runtime.settings import Settings
from shared.runtime.telemetry import configure_logging

WARM_UP = 8


def trace_rows(path: Path, count: int, settings: Settings, *, main_size_only: bool) -> tuple[list[Prompt], int]:
    """Return the first `count` rows, and how many of them were resized to the main size, the model's only size."""
    card = served_card(settings)
    rows, changed = [], 0
    for row in read_trace(path)[:count]:
        drawable = not main_size_only and card.sizes.allows(Size(row.width, row.height))
        if (row.width, row.height) != MAIN_SIZE and not drawable:
            row, changed = replace(row, width=MAIN_SIZE[0], height=MAIN_SIZE[1]), changed + 1
        rows.append(row)
    return rows, changed


class Phase:
    """One run of the trace: answers and images stay on disk, so that the run can continue later."""

    def __init__(self, work: Path, name: str, count: int | None = None) -> None:
        """Open the run; rows beyond `count` of an earlier run are ignored."""
        self.name, self.folder, self._count = name, work / name, math.inf if count is None else count
        self.folder.mkdir(parents=True, exist_ok=True)
        self._answers = self.folder / "answers.jsonl"
        self._seconds = self.folder / "seconds.json"

    def answers(self) -> dict[int, Drawn]:
        lines = self._answers.read_text().splitlines() if self._answers.exists() else []
        rows = [json.loads(line) for line in lines]
        kept = [row for row in rows if row["index"] < self._count]
        return {row["index"]: Drawn(**{**row, "degraded": tuple(row["degraded"])}) for row in kept}

    def keep(self, answer: Drawn, png: bytes) -> None:
        (self.folder / f"{answer.index}.png").write_bytes(png)
        with self._answers.open("a") as file:
            file.write(json.dumps(asdict(answer)) + "\n")

    def pictures(self) -> dict[int, bytes]:
        return {index: (self.folder / f"{index}.png").read_bytes() for index in self.answers()}

    def sat(self, wall_s: float, cpu_s: float, requests: int) -> None:
        """Record one block without its warm-up; `cpu_s` is the whole process's, comparable on a busy machine, too."""
        self._seconds.write_text(json.dumps([*self._sittings(), (wall_s, cpu_s, requests)]))

    def each(self) -> tuple[float, float]:
        """Return (wall, CPU) seconds per request over every recorded block; nan for none."""
        sittings = self._sittings()
        count = sum(requests for _, _, requests in sittings) or math.nan
        return sum(wall for wall, _, _ in sittings) / count, sum(cpu for _, cpu, _ in sittings) / count

    def _sittings(self) -> list[tuple[float, float, int]]:
        return [tuple(one) for one in json.loads(self._seconds.read_text())] if self._seconds.exists() else []


@dataclass
class Turn:
    """One run of the trace on a warm service of its own; generates the prompts that have no image in this run yet."""

    phase: Phase
    rows: Sequence[Prompt]
    settings: Settings
    fields: Mapping[str, Any]
    skip: Sequence[int] = ()
    client: AsyncClient | None = None

    def missing(self, indices: Iterable[int]) -> list[int]:
        left_out = {*self.phase.answers(), *self.skip}
        return [index for index in indices if index not in left_out]

    async def open(self, stack: contextlib.AsyncExitStack) -> None:
        """Start the service until the stack closes, and generate a few images that do not count."""
        own = {"data_dir": self.phase.folder / "data", "catalog_url": "", "blobs_url": ""}
        settings = Settings(**self.settings.model_copy(update=own).model_dump())
        process = await stack.enter_async_context(embedded(settings))
        self.client = client = await stack.enter_async_context(AsyncClient(process.address))
        warm = [
            client.generate(row.prompt, width=row.width, height=row.height, steps=10, cache="off")
            for row in self.rows[:WARM_UP]
        ]
        await asyncio.gather(*warm)

    async def draw(self, index: int, row: Prompt) -> Picture:
        assert self.client is not None
        asked: dict[str, Any] = {"steps": row.steps, "seed": row.seed, **self.fields}  # "auto": the plan chooses T
        asked |= {"user": str(row.user), "width": row.width, "height": row.height}
        return await self.client.generate(row.prompt, **asked)

    async def play(self, indices: Sequence[int], arguments: argparse.Namespace) -> None:
        """Generate these rows and record the block."""
        start, start_cpu, drawn = time.monotonic(), time.process_time(), 0
        done = set(range(len(self.rows))) - set(indices)
        try:
            async for answer, picture in play(
                self.rows, self.draw, done=done, concurrency=arguments.concurrency, think_s=arguments.think_s
            ):
                self.phase.keep(answer, picture.png)
                drawn += 1
        finally:
            self.phase.sat(time.monotonic() - start, time.process_time() - start_cpu, drawn)


async def in_turns(turns: Sequence[Turn], rows: Sequence[Prompt], arguments: argparse.Namespace) -> None:
    """Play the trace in blocks of `--block` rows: every run plays a block before the next block begins.

    The order of the runs reverses from block to block, so other load on the machine affects all runs equally."""
    turns = [turn for turn in turns if turn.missing(range(len(rows)))]
    if not turns:
        return
    async with contextlib.AsyncExitStack() as stack:
        for turn in turns:
            await turn.open(stack)
        began = time.monotonic()
        blocks = [
            range(start, min(start + arguments.block, len(rows))) for start in range(0, len(rows), arguments.block)
        ]
        for place, block in enumerate(blocks):
            for turn in turns if place % 2 == 0 else reversed(turns):
                if missing := turn.missing(block):
                    await turn.play(missing, arguments)
            each = (time.monotonic() - began) / (place + 1)
            names = " and ".join(turn.phase.name for turn in turns)
            print(
                f"{names}: {block.stop} of {len(rows)} rows, {each * (len(blocks) - place - 1):.0f} s left", flush=True
            )
    for turn in turns:
        shutil.rmtree(turn.phase.folder / "data", ignore_errors=True)


def suffix(steps: int | str | None) -> str:
    """Return the end of the names of folders and results, so that runs with other steps are kept apart."""
    return "" if steps is None else f"_{steps}"


def hits_of(phase: Phase) -> list[int]:
    return [index for index, answer in phase.answers().items() if answer.hit]


async def measure(arguments: argparse.Namespace) -> None:
    given = {"large": arguments.large, "encoder": arguments.encoder, "k_table_alpha": arguments.alpha}
    named = {name: value for name, value in given.items() if value}
    settings = Settings(max_rows=arguments.max_rows, log_level="error", **named)
    configure_logging(settings.log_level)  # otherwise each request prints its log line
    steps, card = arguments.steps, served_card(settings)
    if steps == "auto" and not card.auto_steps:
        raise ConfigurationError(f"--steps auto: model {card.name!r} lists no auto_steps; name a number of steps")
    rows, resized = trace_rows(arguments.trace, arguments.count, settings, main_size_only=arguments.main_size_only)
    if arguments.fresh:
        shutil.rmtree(arguments.work, ignore_errors=True)
    on = machine()
    names = ("cache", "no_cache", "fewer_steps")
    cache, without, fewer = (Phase(arguments.work, name, len(rows)) for name in names)
    with_cache = {} if steps is None else {"steps": steps}
    reference = {} if steps is None else {"steps": card.default_steps}
    turns = [
        Turn(cache, rows, settings, {"cache": "auto", **with_cache}),
        Turn(without, rows, settings, {"cache": "off", **reference}),
    ]
    await in_turns(turns, rows, arguments)
    run = [answer.steps_run for answer in cache.answers().values() if not answer.exact]
    average = round(sum(run) / len(run))
    hits = hits_of(cache)[:: arguments.baseline_every]
    skip = sorted(set(range(len(rows))) - set(hits))
    await in_turns([Turn(fewer, rows, settings, {"cache": "off", "steps": average}, skip=skip)], rows, arguments)
    encoder, prompts, scenes = open_encoder(settings.encoder), [row.prompt for row in rows], [row.scene for row in rows]
    verdicts = {
        phase.name: judge_pictures(phase.pictures(), prompts, scenes, encoder, arguments.judge)
        for phase in (cache, without, fewer)
    }
    figures = figures_of(rows, {phase.name: phase.answers() for phase in (cache, without, fewer)}, verdicts)
    for place, name in enumerate(("seconds", "cpu_seconds")):  # per request: a run may have generated only some of them
        figures[name] = {phase.name: phase.each()[place] for phase in (cache, without, fewer)}
    figures["wall_time_saved"] = 1 - figures["seconds"]["cache"] / figures["seconds"]["no_cache"]
    figures["cpu_time_saved"] = 1 - figures["cpu_seconds"]["cache"] / figures["cpu_seconds"]["no_cache"]
    figures["fewer_steps"] = average
    pictures = cache.pictures(), without.pictures()
    figures["look_against_noise"] = look_against(hits_of(cache), *pictures)
    figures["by_relation"] = trace_quality.by_relation(cache.answers())
    figures["similarity_by_k"] = trace_quality.similarity_by_k(cache.answers())
    judged = verdicts["cache"], verdicts["no_cache"]
    figures["quality"] = trace_quality.quality_of(rows, cache.answers(), pictures, judged, encoder)
    print(report(figures))
    print(f"\n{trace_quality.report(figures)}")
    record(
        "session_trace" + suffix(steps),
        figures,
        {
            "steps": steps, "reuse_rules": settings.reuse_rules, "auto_steps": card.auto_steps,
            "requests": len(rows), "brought_to_main_size": resized, "concurrency": arguments.concurrency,
            "max_rows": settings.max_rows, "alpha": settings.k_table_alpha, "think_s": arguments.think_s,
            "baseline_every": arguments.baseline_every,
            "block": arguments.block,
            "model": card.name, "weights_hash": card.weights_hash,
            "k_table": asdict(shipped_table(card, settings.k_table_alpha) or FIG_10) | {"cells": "see k_quality"},
            "guidance": card.default_guidance, "predictor": settings.predictor, "policy": settings.eviction_policy,
        },
        on=on,
        folder=arguments.out,
    )  # fmt: skip
    if steps is None:  # the plot is of T = 50
        plots(figures, arguments.out)


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--large", help="model (default: the settings')")
    parser.add_argument("--encoder", help="CLIP encoder that also scores (default: the settings')")
    parser.add_argument("--trace", type=Path, default=SHIPPED)
    parser.add_argument("--count", type=int, default=1000, help="requests of the trace")
    parser.add_argument("--concurrency", type=int, default=8, help="requests in flight")
    parser.add_argument(
        "--steps", type=lambda text: text if text == "auto" else int(text),
        help="T of every request, or auto: the plan chooses T with the cache (default: the trace's T)",
    )  # fmt: skip
    parser.add_argument("--max-rows", type=int, default=8, help="requests that share a step")
    parser.add_argument(
        "--alpha", type=float, help="K table to use, by the share of quality kept (default: the settings')"
    )
    parser.add_argument("--think-s", type=float, default=0.2, help="seconds that a user pauses after an image")
    parser.add_argument(
        "--baseline-every", type=int, default=1, help="also generate every n-th hit's prompt with fewer steps"
    )
    parser.add_argument("--main-size-only", action="store_true", help="always request 64×64")
    parser.add_argument("--judge", type=Path, default=JUDGE, help="folder of the judge net")
    parser.add_argument(
        "--work", type=Path, help="folder of the answers and images so far (default: one for each --steps)"
    )
    parser.add_argument("--block", type=int, default=50, help="rows per block, with the cache and then without")
    parser.add_argument("--fresh", action="store_true", help="delete an earlier run")
    arguments = parser.parse_args(given)
    arguments.work = arguments.work or Path(f"out/bench/session_trace{suffix(arguments.steps)}")
    quiet()
    asyncio.run(measure(arguments))


if __name__ == "__main__":
    main()
