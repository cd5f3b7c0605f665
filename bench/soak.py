"""200,000 requests of many kinds to one server: which of its resources still grow once its caches are full?

    python -m bench.soak --count 200000
    python -m bench.soak --count 500          # does the command work?

Users send new scenes, edits and repeats of recent ones, cancel jobs, drop their streams, send wrong requests and read
jobs, all over one connection. The server, with a no-op model, runs in a process of its own. Small caches
and short retention times are full soon, and turn over many times. Compared are the means of the third quarter of the
time and of the last one, and the largest value with the mean of the first quarter.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import sqlite3
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.measuring.plotting import pyplot_or_none
from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, settings_of, table
from bench.serving.processes import one_process, resident_mib, scratch
from shared.catalog.tables import METADATA
from shared.client import Accepted, AsyncClient
from shared.client.request_fields import RequestFields
from shared.domain.errors import AfterimageError, CancelledError, InvalidRequestError, NotFoundError
from shared.models.scenes import Scene, caption, edit, random_scene
from shared.runtime.loop import run

SETTINGS = {
    "large": "noop:",
    "capture_steps": "[10, 30]",
    "cache_max_bytes": 8 * 2**20,
    "picture_max_count": 500,
    "results_keep_s": 60,
    "idempotency_keep_s": 60,
    "blob_grace_s": 5,
    "quarantine_s": 30,
    "collect_s": 30,
}
"""Settings of the server: caches that are full, and retention times that are over, within two minutes."""
KINDS = {"new": 30, "edit": 27, "reroll": 8, "repeat": 10, "cancel": 8, "drop": 8, "wrong": 4, "read": 5}
"""Kinds of requests, with their share in per cent."""
AT_ONCE, STEPS = 16, 10
RECENT = 400
"""Requests that edits and repeats refer to."""
GROWTH = 0.05
"""Largest growth of a figure that counts as flat, as a share."""
SWING = 3.0
"""Largest value of a flat figure, as a multiple of its mean in the first quarter: rows come and go in passes."""
SLACK = 8.0
"""Growth in the figure's own unit that is always flat: a file, a thread, a row or a MiB more or less is no trend."""
MOST_SAMPLES = 200
"""Samples that are recorded and plotted, evenly in time; the means are of all."""
Asked = tuple[Scene, int]
"""Scene and seed of a request."""


class Users:
    """Sends requests of random kinds, and counts their ends."""

    def __init__(self, client: AsyncClient, seed: int) -> None:
        self._client, self._seed = client, seed
        self._recent, self._jobs = deque[Asked](maxlen=RECENT), deque[str](maxlen=RECENT)
        self.ended, self.wrong = Counter[str](), dict[str, str]()

    async def send(self, number: int) -> None:
        """Send one request and count its end; `wrong` has an example of each unexpected one."""
        draw = random.Random(f"{self._seed}/{number}")
        (kind,) = draw.choices([*KINDS], [*KINDS.values()])
        try:
            self.ended[await self._one(draw, kind)] += 1
        except AfterimageError as error:
            self.ended["failed"] += 1
            self.wrong.setdefault(f"{kind}: {error.code}: {str(error)[:200]}", f"request {number}")

    async def _one(self, draw: random.Random, kind: str) -> str:
        scene, seed = self._asked(draw, kind)
        fields: RequestFields = {"seed": seed, "user": str(draw.randrange(50)), "variation": "same", "steps": STEPS}
        match kind:
            case "wrong":
                with contextlib.suppress(InvalidRequestError):
                    await self._client.generate(caption(scene), width=63)
                return "refused"
            case "read":
                with contextlib.suppress(NotFoundError, IndexError):  # the job expired, or none was made yet
                    await self._client.get_picture(draw.choice(self._jobs))
                await self._client.list_jobs()
                return "read"
            case "cancel" | "drop":
                return await self._left(draw, kind, caption(scene), fields)
        made = await self._client.generate(caption(scene), **fields)
        self._recent.append((scene, seed))
        self._jobs.append(made.job.id)
        return f"from {made.plan.source}"

    def _asked(self, draw: random.Random, kind: str) -> Asked:
        scene, seed = draw.choice(self._recent) if self._recent else (random_scene(draw), draw.randrange(2**32))
        match kind:
            case "repeat":
                return scene, seed
            case "reroll":
                return scene, draw.randrange(2**32)
            case "edit":
                return edit(scene, draw.choice(("colour", "background", "light")), draw), draw.randrange(2**32)
        return random_scene(draw), draw.randrange(2**32)

    async def _left(self, draw: random.Random, kind: str, prompt: str, fields: RequestFields) -> str:
        """Begin a stream and leave it: cancel its job, or drop it after a few events."""
        events, before = self._client.generate_stream(prompt, previews=draw.random() < 0.5, **fields), draw.randrange(4)
        try:
            async with contextlib.aclosing(events):
                async for event in events:
                    if kind == "cancel" and isinstance(event, Accepted):
                        await self._client.cancel(event.job_id)
                    if kind == "drop" and (before := before - 1) < 0:
                        return "dropped"
        except CancelledError:
            return "cancelled"
        return "finished first"


def sampled(pid: int, folder: Path) -> dict[str, float]:
    """Return what the server holds now: memory, files and threads, its rows by table, and its folder in MiB."""
    process = Path(f"/proc/{pid}")
    found: dict[str, float] = {
        "resident memory, MiB": resident_mib(pid),
        "open files": len([*(process / "fd").iterdir()]),
        "threads": len([*(process / "task").iterdir()]),
    }
    with contextlib.closing(sqlite3.connect(f"file:{folder}/catalog.sqlite3?mode=ro", uri=True)) as catalog:
        for state in ("queued", "running"):
            query = "SELECT count(*) FROM jobs WHERE state = ?"
            found[f"{state} jobs"] = catalog.execute(query, (state,)).fetchone()[0]
        for name in sorted(METADATA.tables):
            found[f"rows of {name}"] = catalog.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
    sizes = defaultdict[str, float](float)
    for at, _, names in os.walk(folder):
        for path in (Path(at, name) for name in names):
            with contextlib.suppress(FileNotFoundError):  # deleted in between
                top = path.relative_to(folder).parts[0]
                sizes[f"{top.partition('.')[0]}, MiB"] += path.stat().st_size / 2**20
    return {**found, **{name: round(size, 2) for name, size in sorted(sizes.items())}}


def quarters(samples: Sequence[dict[str, float]]) -> dict[str, dict[str, Any]]:
    """Return for each figure its largest value, its means over three quarters of the time, and whether it is flat."""
    part = len(samples) // 4 or 1
    found = {}
    for name in dict.fromkeys(name for one in samples for name in one if name not in ("at_s", "sent")):
        values = [one.get(name, 0.0) for one in samples]
        first, third, last = fmean(values[:part]), fmean(values[-2 * part : -part] or values), fmean(values[-part:])
        flat = last - third <= max(GROWTH * third, SLACK) and max(values) <= SWING * first + SLACK
        means = {"first_quarter": first, "third_quarter": third, "last_quarter": last}
        found[name] = {"most": max(values), **means, "flat": flat}
    return found


async def measure(asked: argparse.Namespace) -> dict[str, Any]:
    settings = {**SETTINGS, "http_listen": "", "video": "", "segmenter": "", "log_level": "error"}
    with scratch() as folder, one_process(settings, folder) as server:
        async with AsyncClient(server.url, retry_s=0.0) as client:
            found = await _sent(Users(client, asked.seed), asked, lambda: sampled(server.pid, folder / "data"))
        alive = server.alive
    return {**found, "alive": alive, "exit_code": server.returned}


async def _sent(users: Users, asked: argparse.Namespace, sample: Callable[[], dict[str, float]]) -> dict[str, Any]:
    """Send all requests, AT_ONCE at a time, and take a sample every `asked.every_s` seconds."""
    numbers, begun, sent = iter(range(asked.count)), time.monotonic(), 0
    samples = list[dict[str, float]]()

    async def one() -> None:
        nonlocal sent
        for number in numbers:
            if time.monotonic() - begun > asked.most_s:
                return
            await users.send(number)
            sent += 1

    async def watch() -> None:
        while True:
            samples.append(
                {"at_s": round(time.monotonic() - begun, 1), "sent": sent, **await asyncio.to_thread(sample)}
            )
            now = samples[-1]
            sys.stderr.write(f"{sent} requests, {now['at_s']:.0f} s, {now['resident memory, MiB']:.0f} MiB\n")
            await asyncio.sleep(asked.every_s)

    watching = asyncio.create_task(watch())
    try:
        await asyncio.gather(*(one() for _ in range(AT_ONCE)))
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    return {
        "sent": sent,
        "seconds": time.monotonic() - begun,
        "ended": dict(users.ended.most_common()),
        "wrong": users.wrong,
        "figures": quarters(samples),
        "samples": samples[:: len(samples) // MOST_SAMPLES + 1],
    }


def plot(samples: Sequence[dict[str, float]], path: Path) -> None:
    """Plot each figure that changed over the requests sent; do nothing if matplotlib is not installed."""
    if (pyplot := pyplot_or_none()) is None:
        return
    lines = {name: [one.get(name, 0.0) for one in samples] for name in quarters(samples)}
    drawn = [name for name, values in lines.items() if max(values) >= min(values) + 1]
    figure, places = pyplot.subplots(-(-len(drawn) // 4), 4, figsize=(13, 2 * -(-len(drawn) // 4)), squeeze=False)
    for axes in places.flat:
        axes.set_axis_off()
    for axes, name in zip(places.flat, drawn, strict=False):
        axes.set_axis_on()
        axes.plot([one["sent"] / 1000 for one in samples], lines[name], linewidth=0.8)
        axes.set_ylim(0, None)
        axes.set_title(name, fontsize=9)
        axes.tick_params(labelsize=7)
    figure.supxlabel("requests, thousands", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    print(f"wrote {path}")


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--count", type=int, default=200_000, help="requests")
    parser.add_argument("--every-s", type=float, default=5.0, help="seconds between two samples")
    parser.add_argument("--most-s", type=float, default=6000.0, help="seconds after which no further request is sent")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(given)
    quiet()
    on = machine()
    found = run(measure(asked))
    rows = [(name, *(round(value, 1) for value in one.values())) for name, one in found["figures"].items()]
    print(table(("figure", "most", "first quarter", "third quarter", "last quarter", "flat"), rows))
    print(f"\n{found['sent']} requests, {found['sent'] / found['seconds']:.0f}/s: {found['ended']}")
    print(f"server alive: {found['alive']}, ended with {found['exit_code']}")
    for what, example in found["wrong"].items():
        print(f"wrong: {what} ({example})")
    record("soak", found, {**settings_of(asked), **SETTINGS}, on=on, folder=asked.out)
    plot(found["samples"], asked.out / "soak.png")


if __name__ == "__main__":
    main()
