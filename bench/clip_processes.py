"""Clips by real processes with text extractor and segmenter on the same cores (FlexCache §6.2, Fig. 15).

    python -m bench.clip_processes --steps 10     (needs the servers of scripts.stack and a quiet machine)
    python -m bench.clip_processes --tiny      (does the command work?)

Every service is a process of its own over real servers; each of two workers has one torch thread. Users request the
prompts of a session trace, each the next one at once; the first `--warm` requests and the last 5 % do not count.
Three systems, each with an empty cache, by the papers' thresholds (NIRVANA Fig. 10, FlexCache §4.2), since the measured
tables allow no start at the default α:

- whole prompts alone, without text extractor and segmenter;
- both at work, but no pair starts a clip: what they cost;
- both at work, and pairs start clips.

Then one client alone measures how long clips take: from noise, and stitched at each K. The states of pairs leave the
cache one K after the other, so that the next smaller K is used.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.clip_systems import with_fig_10
from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, quantile, record, settings_of, share, table
from bench.serving.cluster_under_test import histogram_mean
from bench.serving.processes import counted, cpu_of, grown, scratch, servers_on_path, spent
from scripts.stack.stack import PORTS, Stack, missing, variable
from shared.client import AsyncClient, Clip
from shared.domain.messages import StateLost
from shared.domain.types import Plan, PlanSource
from shared.models import find_card
from shared.runtime.loop import run as run_on_loop
from shared.runtime.progress import Remaining
from shared.runtime.settings import Settings
from shared.service.backends import Backends, open_backends

WORKERS = 2
TRACE = Path("load/traces/clip_sessions_1200.jsonl")
OBJECT, BACKGROUND = "a red fox runs to the left in the snow", "a yellow duck moves to the right in a forest"
BOTH = "a red fox runs to the left in a forest"
"""Its object is that of the first prompt, its background that of the second."""
WITHIN_S = 600.0
"""Seconds for masks of all clips, and for the cache to notice a lost state."""


@dataclass(frozen=True)
class Way:
    """One system under test."""

    name: str
    title: str
    segmented: bool = True
    pairs: bool = False


WAYS = (
    Way("whole", "whole prompts alone", segmented=False),
    Way("beside", "with text extractor and segmenter, no pairs"),
    Way("pairs", "with text extractor, segmenter and pairs", pairs=True),
)


@dataclass(frozen=True)
class Answer:
    at: float
    """Time of the answer on the monotonic clock, seconds."""
    seconds: float
    clip: Clip


class ClipsUnderTest:
    """A running stack, its client and its backends."""

    def __init__(self, stack: Stack, client: AsyncClient, backends: Backends, given: argparse.Namespace) -> None:
        self.stack, self.client, self.backends, self.given = stack, client, backends, given

    async def ask(self, prompt: str, user: str, **fields: Any) -> Answer:
        asked: dict[str, Any] = {"steps": self.given.steps, "frames": self.given.frames, "variation": "same", **fields}
        begun = time.monotonic()
        clip = await self.client.generate_video(prompt, user=user, timeout_s=3600.0, **asked)
        now = time.monotonic()
        return Answer(now, now - begun, clip)

    async def all(self, rows: Sequence[Mapping[str, Any]], title: str) -> list[Answer]:
        """Request every row once in order, `--users` at a time."""
        found, waiting, progress = list[Answer](), iter(rows), Remaining(title, len(rows))

        async def user() -> None:
            for row in waiting:
                found.append(await self.ask(row["prompt"], str(row["user"])))
                progress.advance()

        await asyncio.gather(*(user() for _ in range(self.given.users)))
        return found

    async def load(self, rows: Sequence[Mapping[str, Any]], title: str) -> dict[str, Any]:
        """Return the figures of the requests after the first `--warm`."""
        await self.all(rows[: self.given.warm], f"{title}, warm-up")
        cpu, page, begun = cpu_of(self.stack), counted(self.stack, "segmenter-1"), time.monotonic()
        answers = sorted(await self.all(rows[self.given.warm :], title), key=lambda one: one.at)
        seconds, used = time.monotonic() - begun, spent(cpu, cpu_of(self.stack))
        some = answers[: max(2, len(answers) - len(answers) // 20)]
        waiting = len(await self.backends.catalog.jobs.to_segment(1000))
        after = counted(self.stack, "segmenter-1")
        return {
            "counted": len(some),
            "per_minute": 60 * (len(some) - 1) / (some[-1].at - some[0].at),
            "by_source": dict(Counter(str(one.clip.plan.source) for one in some)),
            "k_histogram": dict(sorted(Counter(one.clip.plan.start_step for one in some).items())),
            "steps_saved": fmean(1 - one.clip.steps_run / one.clip.plan.run_steps(self.given.steps) for one in some),
            "extract_ms": 1000 * fmean(one.clip.timings.extract_s for one in some),
            "cores": {name: one / seconds for name, one in sorted(used.items())},
            "segmented": grown(page, after, "afterimage_clips_segmented_total", outcome="masks"),
            "segment_s": histogram_mean(page, after, "afterimage_stage_seconds", stage="segment"),
            "waiting_for_masks": waiting,
        }

    async def alone(self) -> dict[str, Any]:
        """Return the seconds of a clip from noise, and stitched at each K, with one request at a time."""
        entries = [(await self.ask(one, "ana", seed=seed)).clip.job.id for seed, one in enumerate((OBJECT, BACKGROUND))]
        async with asyncio.timeout(WITHIN_S):
            while not await self._masked(entries):  # noqa: ASYNC110  # the catalog offers no event to wait for
                await asyncio.sleep(0.2)
        found: dict[str, Any] = {"noise": await self._timed("off")}
        while (plan := await self._plan()) is not None:
            found[str(plan.start_step)] = await self._timed("read")
            await self._lose(plan.start_step)
        return found

    async def _masked(self, entries: Sequence[str]) -> bool:
        found = await self.backends.catalog.entries.by_ids(entries)
        return all(id_ in found and found[id_].mask is not None for id_ in entries)

    async def _timed(self, cache: str) -> dict[str, float]:
        """cache: off for clips from noise, read for those that start as planned."""
        answers = [
            await self.ask(BOTH, f"{cache} {seed}", seed=seed, cache=cache) for seed in range(self.given.repeats)
        ]
        timings = [one.clip.timings for one in answers]
        return {
            "count": len(answers),
            "p50_s": quantile([one.seconds for one in answers], 0.5),
            "steps": fmean(one.clip.steps_run for one in answers),
            "fetch_ms": 1000 * fmean(one.fetch_s for one in timings),
            "plan_ms": 1000 * fmean(one.extract_s + one.embed_s + one.predict_s + one.plan_s for one in timings),
        }

    async def _plan(self) -> Plan | None:
        """Return the plan by which a pair would start a clip now; None when none would."""
        asked: dict[str, Any] = {"steps": self.given.steps, "frames": self.given.frames, "variation": "same"}
        (view,) = await self.client.plan(BOTH, modality="video", user="asker", cache="read", **asked)
        plan = view.job.plan
        return plan if plan.source is PlanSource.STITCHED else None

    async def _lose(self, start: int) -> None:
        """Take the states at this step from every pair that would start there: the load left more than one."""
        async with asyncio.timeout(WITHIN_S):
            while (plan := await self._plan()) is not None and plan.start_step == start:
                for source in plan.sources:
                    await self.backends.bus.publish(StateLost(source.entry_id, start, source.key))
                await asyncio.sleep(0.2)


async def drive(stack: Stack, way: Way, given: argparse.Namespace, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    urls: Any = {port.setting: stack.environment[variable(port.setting)] for port in PORTS}
    backends = await open_backends(Settings(**urls), ("catalog", "bus"))
    try:
        async with AsyncClient(stack.gateways[0], retry_s=120.0) as client:
            clips = ClipsUnderTest(stack, client, backends, given)
            found = {"title": way.title, **await clips.load(rows, way.title)}
            return found | ({"alone": await clips.alone()} if way.pairs else {})
    finally:
        await backends.close()


def settings_for(way: Way, given: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of every service of this system, but for its model."""
    return {
        "torch_threads": 1, "log_level": "error", "max_queued": 4 * given.users,
        "decouple": "video" if way.segmented else "off", "segmenter": given.segmenter if way.segmented else "",
        "reuse_bound": "flexcache" if way.pairs else "nirvana",
    }  # fmt: skip


def measured(way: Way, given: argparse.Namespace, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    settings = settings_for(way, given)
    load = round(os.getloadavg()[0], 2)
    with scratch() as folder, scratch() as model:
        settings["video"] = with_fig_10(find_card(given.video), model)
        with Stack(folder, replicas={"gpu_worker": WORKERS}, settings=settings) as stack:
            return {**run_on_loop(drive(stack, way, given, rows)), "load_1min_before": load}


def report(found: Mapping[str, Mapping[str, Any]]) -> str:
    heads = ["system", "counted", "clips a minute", "sources", "steps saved", "segmenter, cores", "extractor, cores",
             "s a segmented clip", "waiting for masks"]  # fmt: skip
    rows = [
        [one["title"], one["counted"], one["per_minute"],
         ", ".join(f"{n} {source}" for source, n in one["by_source"].items()), share(one["steps_saved"]),
         one["cores"].get("segmenter-1", 0.0), one["cores"].get("text_extractor-1", 0.0), one["segment_s"],
         one["waiting_for_masks"]]
        for one in found.values()
    ]  # fmt: skip
    alone: Mapping[str, Any] = next((one["alone"] for one in found.values() if "alone" in one), {})
    latency = table(
        ["start", "clips", "p50 s", "steps", "fetch ms", "plan ms"],
        [[f"K = {name}" if name.isdigit() else name, one["count"], one["p50_s"], one["steps"], one["fetch_ms"],
          one["plan_ms"]] for name, one in alone.items()],
    )  # fmt: skip
    return f"\n{table(heads, rows)}\n\n{latency}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--segmenter", default="bundled:segmenter", help="value of the setting `segmenter`")
    parser.add_argument("--video", default="bundled:motion", help="value of the setting `video`")
    parser.add_argument("--trace", type=Path, default=TRACE, help="session trace of clips, one JSON object a line")
    parser.add_argument("--ways", nargs="+", choices=[way.name for way in WAYS], default=[way.name for way in WAYS])
    parser.add_argument("--steps", type=int, default=50, help="T")
    parser.add_argument("--frames", type=int, default=16, help="frames of a clip")
    parser.add_argument("--warm", type=int, default=60, help="first requests, not counted")
    parser.add_argument("--count", type=int, default=150, help="requests after them")
    parser.add_argument("--users", type=int, default=4, help="requests in flight")
    parser.add_argument("--repeats", type=int, default=7, help="clips from noise and at each K, one at a time")
    parser.add_argument("--tiny", action="store_true", help="10 steps, six requests, one repeat; only pairs")
    given = parser.parse_args(arguments)
    if given.tiny:
        tiny = {"steps": 10, "warm": 2, "count": 4, "users": 2, "repeats": 1, "ways": ["pairs"]}
        vars(given).update(tiny)
    servers_on_path()
    if said := missing(os.environ):
        parser.exit(message="clip_processes: skipped; " + "; ".join(said) + "\n")
    quiet()
    on = machine()
    lines = given.trace.read_text(encoding="utf-8").splitlines()[: given.warm + given.count]
    rows = [json.loads(line) for line in lines]
    found = {way.name: measured(way, given, rows) for way in WAYS if way.name in given.ways}
    print(report(found))
    after = {"load_1min_after": round(os.getloadavg()[0], 2)}
    settings = {**settings_of(given), "segmenter": Path(given.segmenter).name, "workers": WORKERS}
    record("clip_processes", {"systems": found}, settings, on={**on, **after}, folder=given.out)


if __name__ == "__main__":
    main()
