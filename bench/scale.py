"""Start, lookups, insertion, memory and disk of the embedded mode with 1,000, 10,000 and 100,000 cached entries.

    python -m bench.scale                                       (1,000 and 10,000 entries)
    python -m bench.scale --count 1000 10000 100000             (the goals of bench/README.md)

For each count, a data directory is filled through the catalog's and the blob store's ports. Each entry has an image and
a state at each of five levels. The embeddings lie around those of real prompts, in --dim dimensions. The denoiser does
not wait, so a request is overhead and the encoder's forward pass. A fresh process serves the directory and measures
itself. The same lookups are then made in Weaviate, whose index is built from the same catalog.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.measuring.growth import Growth, fitted, short
from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, record, table
from bench.serving.filled_cache import Rows, around, differences, embedded_prompts, fill, serve_one, widened_encoder
from bench.serving.filled_process import Task
from bench.serving.processes import resident_mib, servers_on_path
from bench.weaviate_lookup import like, nearest, search, timed_repair
from scripts.stack import weaviate
from shared.blobs import open_blobs
from shared.catalog import open_catalog
from shared.domain.types import IndexFilter, Job, visible_owners
from shared.index import open_index
from shared.runtime.progress import Remaining
from shared.runtime.settings import Settings
from shared.runtime.telemetry import configure_logging

GOALS_AT = 100_000
GOALS = {"start_s": 15.0, "plan_p50_ms": 3.0, "rss_most_mib": 1536.0}
"""Goals at GOALS_AT entries, by the name of the figure; each must not be exceeded."""
MILLION = 1_000_000
FIGURES: dict[str, tuple[str, tuple[str, ...]]] = {
    "start_s": ("start: process to ready, s", ("start_s",)),
    "start_cpu_s": ("… processor time of that, s", ("start_cpu_s",)),
    "settled_s": ("graphs complete after ready, s", ("settled_s",)),
    "early_p50_ms": ("plan right after the start, p50 ms", ("early", "p50_ms")),
    "plan_p50_ms": ("plan, p50 ms", ("plan", "p50_ms")),
    "plan_p99_ms": ("plan, p99 ms", ("plan", "p99_ms")),
    "request_p50_ms": ("whole request, p50 ms", ("request", "p50_ms")),
    "request_p99_ms": ("whole request, p99 ms", ("request", "p99_ms")),
    "insert_per_s": ("inserted entries a second", ("insert", "per_s")),
    "rss_mib": ("resident memory, graphs complete, MiB", ("rss_mib",)),
    "rss_most_mib": ("most resident memory of the run, MiB", ("rss_most_mib",)),
    "catalog_mib": ("catalog on disk, MiB", ("disk", "catalog_mib")),
    "blobs_mib": ("blobs on disk, MiB", ("disk", "blobs_mib")),
    "files": ("files", ("disk", "files")),
    "collector_s": ("one pass of the collector, s", ("collector", "seconds")),
    "collector_p99_ms": ("plan during that pass, p99 ms", ("collector", "plan", "p99_ms")),
    "search_p50_ms": ("lookup in the memory index, p50 ms", ("search", "p50_ms")),
    "search_recall": ("… recall@1", ("search", "recall_at_1")),
    "weaviate_p50_ms": ("lookup in Weaviate, p50 ms", ("weaviate", "search", "p50_ms")),
    "weaviate_p99_ms": ("… p99 ms", ("weaviate", "search", "p99_ms")),
    "weaviate_recall": ("… recall@1", ("weaviate", "search", "recall_at_1")),
    "weaviate_rebuild_s": ("… index built from the catalog, s", ("weaviate", "rebuild_s")),
    "weaviate_mib": ("… resident memory, MiB", ("weaviate", "memory_mib")),
}
"""Name of a figure → its words, and its place among the figures of one count."""
NOT_FITTED = ("search_recall", "weaviate_recall", "insert_per_s")


def figure(found: dict[str, Any], name: str) -> float | None:
    """Return a figure of one count by its name in FIGURES; None if it was not measured."""
    at: Any = found
    for part in FIGURES[name][1]:
        at = at.get(part) if isinstance(at, dict) else None
    return None if at is None else float(at)


def on_disk(data_dir: Path) -> dict[str, float]:
    """Return allocated MiB of catalog and blobs, the blobs' own MiB, and the number of files."""
    found = {"catalog_mib": 0.0, "blobs_mib": 0.0, "blobs_content_mib": 0.0, "files": 0}
    for here, _, files in os.walk(data_dir):
        for name in files:
            seen = os.stat(os.path.join(here, name))
            kind = "catalog" if name.startswith("catalog") else "blobs"
            found[f"{kind}_mib"] += seen.st_blocks * 512 / 2**20
            found["blobs_content_mib"] += seen.st_size / 2**20 if kind == "blobs" else 0.0
            found["files"] += 1
    return found


async def one_count(arguments: argparse.Namespace, count: int, folder: Path) -> dict[str, Any]:
    """Fill a data directory of `count` entries and measure it."""
    encoder = widened_encoder(arguments.encoder, arguments.dim, folder / "encoder")
    prompts, centres = await asyncio.to_thread(embedded_prompts, encoder, min(arguments.clusters, count))
    rows, of = around(centres, count + arguments.inserted, seed=1)
    names = [prompts[centre] for centre in of.tolist()]
    settings = Settings(data_dir=folder / "data", large="noop:?step_ms=0", encoder=str(encoder),
                        state_codec=arguments.codec, log_level="error")  # fmt: skip
    served_id = await serve_one(settings, names[0])
    catalog, blobs = await open_catalog(settings.catalog_url), await open_blobs(settings.blobs_url)
    served = await catalog.jobs.get(served_id)
    began = time.monotonic()
    ids = [served.id, *await fill(catalog, blobs, served, rows[1:count], names[1:])]
    found: dict[str, Any] = {"entries": (await catalog.entries.totals()).entries, "fill_s": time.monotonic() - began}
    if wrong := await differences(catalog, blobs, served, ids[1]):
        raise SystemExit(f"scale: a filled entry differs from a served one: {'; '.join(wrong)}")
    await blobs.close()
    await catalog.close()
    assert served.result is not None
    found["state_bytes"] = [state.bytes for state in served.result.captured]
    rows[0] = np.frombuffer(served.vector, "<f4")
    queries = like(rows[:count], arguments.queries, seed=2)
    truth = [ids[number] for number in nearest(rows[:count], queries, np.ones(count, np.bool_))]
    found["disk"] = on_disk(settings.data_dir)
    if not arguments.without_weaviate:
        found["weaviate"] = await in_weaviate(folder, settings, served, queries, truth, arguments.limit)
    asked = np.random.default_rng(3).choice(len(prompts), arguments.requests)
    task = Task(
        str(settings.data_dir), settings.large, settings.encoder, settings.state_codec, served.id, truth,
        [prompts[one] for one in asked.tolist()], names[count:], 0.0, arguments.limit,
    )  # fmt: skip
    return found | await asyncio.to_thread(served_alone, folder, task, queries, rows[count:])


def served_alone(folder: Path, task: Task, queries: Rows, rows: Rows) -> dict[str, Any]:
    """Run a process that serves the data directory; return its figures."""
    np.save(folder / "queries.npy", queries)
    np.save(folder / "rows.npy", rows)
    begun = dataclasses.replace(task, begun_at=time.time())
    (folder / "task.json").write_text(json.dumps(dataclasses.asdict(begun)))
    subprocess.run([sys.executable, "-m", "bench.serving.filled_process", str(folder)], check=True)
    figures: dict[str, Any] = json.loads((folder / "figures.json").read_text())
    return figures


async def in_weaviate(
    folder: Path, settings: Settings, served: Job, queries: Rows, truth: Sequence[str], limit: int
) -> dict[str, Any]:
    """Build Weaviate's index from the catalog, and make the same lookups."""
    server = await asyncio.to_thread(weaviate.start, folder / "weaviate")
    try:
        catalog, index = await open_catalog(settings.catalog_url), await open_index(server.url)
        count = (await catalog.entries.totals()).entries
        built, seconds = await timed_repair(catalog, index, Remaining("entries indexed in Weaviate", count).advance)
        compat = str(served.result.compat) if served.result else ""
        owners = tuple(visible_owners(served.request.tenant, "asker"))
        where = IndexFilter(compat, owners, served.encoder_hash)
        await search(index, queries[:50], truth[:50], where, limit)  # warm
        found = await search(index, queries, truth, where, limit)
        await index.close()
        await catalog.close()
        return {"added": built.added, "rebuild_s": seconds, "search": found, "memory_mib": resident_mib(server.pid)}
    finally:
        server.stop()


def growths(found: Sequence[dict[str, Any]]) -> dict[str, Growth]:
    """Fit how each figure grows with the number of entries; those with fewer than three values, and those that do not
    grow, are left out."""
    fits: dict[str, Growth] = {}
    for name in FIGURES:
        points = [(one["entries"], figure(one, name)) for one in found]
        known = [(entries, value) for entries, value in points if value is not None]
        if len(known) > 2 and name not in NOT_FITTED and (fit := fitted(known)).slope > 0:
            fits[name] = fit
    return fits


def judged(found: Sequence[dict[str, Any]]) -> list[tuple[str, float, float, bool]]:
    """Return (figure, goal, measured, met) of each goal; nothing without a run of GOALS_AT entries."""
    at = next((one for one in found if one["entries"] == GOALS_AT), None)
    if at is None:
        return []
    measured = {name: figure(at, name) or 0.0 for name in GOALS}
    return [(name, goal, measured[name], measured[name] <= goal) for name, goal in GOALS.items()]


def report(found: Sequence[dict[str, Any]], fits: dict[str, Growth]) -> str:
    """Return the table of all counts with the growth, and the goals."""
    lines = []
    for name, (words, _) in FIGURES.items():
        values = [figure(one, name) for one in found]
        if any(value is not None for value in values):
            fit = fits.get(name)
            ahead = [short(fit.at(MILLION)), str(fit)] if fit is not None else ["–", "–"]
            lines.append([words, *("–" if value is None else short(value) for value in values), *ahead])
    headings = ["entries", *(f"{one['entries']:,}" for one in found), "1,000,000 by the growth", "growth"]
    text = table(headings, lines)
    goals = judged(found)
    if not goals:
        return f"\n{text}\n\nThe goals are stated for {GOALS_AT:,} entries: add --count {GOALS_AT}."
    rows = [[FIGURES[name][0], short(goal), short(got), "met" if met else "missed"] for name, goal, got, met in goals]
    return f"\n{text}\n\n" + table([f"goal at {GOALS_AT:,} entries", "at most", "measured", ""], rows)


async def measure(arguments: argparse.Namespace) -> None:
    on, found = machine(), list[dict[str, Any]]()
    for count in sorted(set(arguments.count)):
        print(f"\n== {count:,} entries", flush=True)
        folder = Path(tempfile.mkdtemp(prefix="afterimage-bench-"))
        try:
            found.append(await one_count(arguments, count, folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    fits = growths(found)
    print(report(found, fits))
    print(f"load {on['load_1min']} before, {os.getloadavg()[0]:.1f} after")
    figures = {
        "counts": found,
        "growth": {name: {"form": fit.form, "formula": str(fit), "at_1000000": fit.at(MILLION)}
                   for name, fit in fits.items()},
        "goals": [dict(zip(("figure", "goal", "measured", "met"), one, strict=True)) for one in judged(found)],
    }  # fmt: skip
    settings = {key: str(value) for key, value in vars(arguments).items() if key != "out"}
    settings |= {"model": "noop:?step_ms=0"}
    record("scale", figures, settings, on={**on, "load_1min_after": os.getloadavg()[0]}, folder=arguments.out)


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--count", type=int, nargs="+", default=[1_000, 10_000], help="cached entries, one run each")
    parser.add_argument("--dim", type=int, default=512, help="dimensions of an embedding")
    parser.add_argument("--clusters", type=int, default=5000, help="different prompts that the entries lie around")
    parser.add_argument(
        "--encoder", default="bundled:clip", help="CLIP encoder, widened to --dim without changing cosines"
    )
    parser.add_argument("--codec", default="int4", help="codec of the states")
    parser.add_argument("--queries", type=int, default=1000, help="lookups of each kind")
    parser.add_argument("--requests", type=int, default=200, help="whole requests")
    parser.add_argument("--inserted", type=int, default=1000, help="finished jobs that become entries")
    parser.add_argument("--limit", type=int, default=8, help="entries wanted by a lookup (the setting `candidates`)")
    parser.add_argument("--without-weaviate", action="store_true", help="skip the lookups in Weaviate")
    arguments = parser.parse_args(given)
    servers_on_path()
    if not arguments.without_weaviate and weaviate.find() is None:
        print(f"scale: no lookups in Weaviate; {weaviate.HOW_TO_GET_IT}")
        arguments.without_weaviate = True
    quiet()
    configure_logging("error")
    asyncio.run(measure(arguments))


if __name__ == "__main__":
    main()
