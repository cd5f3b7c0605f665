"""Overhead of a request beyond text encoding, denoising and decoding, for hits and for misses, by part.

    python -m bench.overhead --count 1000 --real-count 200

One client requests one image after the other from the all-in-one service in this process, over real gRPC. Overhead is
the client's wait minus the encoder's forward pass, the denoiser's forward passes, the worker's prompt encoding and the
VAE. Each of these parts is timed inside the service that runs it. The first run's denoiser waits a known time a step;
the next run uses the real one. With --pictures-count another run embeds and searches every finished image, as a service
with two models does, although no request starts from an image. Pauses between requests are random, so no timer of the
service stays in phase with the requests. At the end the same process measures the floors of the path
(bench/serving/embedded_floors.py).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import random
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.measuring.quiet import quiet
from bench.measuring.recording import command_line, machine, quantile, record, table
from bench.serving import embedded_floors
from bench.traced.closed_loop import stages
from load.sessions import MAIN_SIZE, read_trace
from services.cli.embedded import embedded
from services.embedder.encoder import encoder_folder, encoder_hash
from shared.catalog import open_catalog
from shared.client import AsyncClient
from shared.domain.types import PlanSource
from shared.models import served_card
from shared.models.k_table import KTable, Level, profile_kind, profile_of, table_to_json
from shared.runtime.loop import run as run_on_loop
from shared.runtime.progress import Remaining
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS, configure_logging
from shared.service.backends import Backends

GOAL_P50_S, GOAL_P99_S = 0.005, 0.020
WARM_UP = 20
QUANTILES = ("p10_ms", "p50_ms", "p90_ms", "p99_ms")
DENOISING = ("embedding", "encode_s", "forwards", "decode_s")
"""Parts of a request that are not overhead."""
PARTS = (
    ("embed_s", "embedding: call and batching around the encoder"),
    ("predict_s", "match predictor"),
    ("plan_s", "retriever: exact check, search, plan"),
    ("accept_s", "job row, queue, announcement"),
    ("queue_s", "claim, and wait for the engine (beyond that)"),
    ("fetch_s", "fetch the state"),
    ("between", "between the denoising steps: decide, fold, previews, captures"),
    ("store_s", "PNG encoded, image and states written"),
    ("rest", "the call itself, finishing the row, waking the waiting call, reading the image"),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One request: its start, its whole time, the computing in it, and the rest by part."""

    hit: bool
    total_s: float
    computing_s: float
    parts: dict[str, float]
    cpu_s: float = 0.0
    """Processor seconds of the whole process, computing included; a busy machine changes them less than wall time."""

    @property
    def overhead_s(self) -> float:
        return self.total_s - self.computing_s


def sample(
    hit: bool, total_s: float, timings: dict[str, float], *, embedding_s: float, forwards_s: float, cpu_s: float = 0.0
) -> Sample:
    """Split a request's wall time; `embedding_s` and `forwards_s` are seconds inside encoder and denoiser."""
    computing_s = embedding_s + forwards_s + timings["encode_s"] + timings["decode_s"]
    parts = {name: timings[name] for name, _ in PARTS if name in timings}
    parts["embed_s"] -= embedding_s
    # a job waits in its queue from the creation of its row, while the gateway still finishes accepting it
    parts["queue_s"] = max(parts["queue_s"] - parts["accept_s"], 0.0)
    parts["between"] = timings["denoise_s"] - forwards_s
    parts["rest"] = total_s - computing_s - sum(parts.values())
    return Sample(hit, total_s, computing_s, parts, cpu_s)


def summary(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return quantiles of the overhead, and the mean and p99 of every part, in milliseconds."""
    if not samples:
        return {"requests": 0}
    overheads = [one.overhead_s * 1000 for one in samples]
    return {
        "requests": len(samples),
        "p10_ms": quantile(overheads, 0.1),
        "p50_ms": quantile(overheads, 0.5),
        "p90_ms": quantile(overheads, 0.9),
        "p99_ms": quantile(overheads, 0.99),
        "mean_ms": fmean(overheads),
        "total_p50_ms": quantile([one.total_s * 1000 for one in samples], 0.5),
        "cpu_p50_ms": quantile([one.cpu_s * 1000 for one in samples], 0.5),
        "parts_p50_ms": {name: quantile([one.parts[name] * 1000 for one in samples], 0.5) for name, _ in PARTS},
        "parts_p99_ms": {name: quantile([one.parts[name] * 1000 for one in samples], 0.99) for name, _ in PARTS},
    }


@contextlib.asynccontextmanager
async def service(settings: Settings) -> AsyncIterator[tuple[AsyncClient, Backends]]:
    async with embedded(settings) as process, AsyncClient(process.address) as client:
        gc.collect()
        gc.freeze()  # as `afterimage up` does
        yield client, process.context.backends
        gc.unfreeze()


async def run(
    settings: Settings, count: int, pause_s: float, floors: int = 0
) -> tuple[list[Sample], dict[str, embedded_floors.Floor]]:
    """Send `count` requests of the session trace at the main size, one at a time, without exact repeats.

    Also measure each call that a request waits for, `floors` times. `pause_s` is the mean pause; each pause is 0.5 to
    1.5 times as long."""
    rows, samples, pauses = read_trace(), list[Sample](), random.Random(0)
    found: dict[str, embedded_floors.Floor] = {}
    card = served_card(settings)
    width, height = MAIN_SIZE
    async with service(settings) as (client, backends):
        remaining = Remaining(f"{card.name}, requests", count + WARM_UP)
        for number in range(-WARM_UP, count):
            row = rows[number % len(rows)]
            lap = max(number, 0) // len(rows)
            user = f"{lap}-{row.user}"
            before = _forwards(card.name), _embeddings()
            start, cpu = time.monotonic(), time.process_time()
            # no seed: the request is generated, never answered with a stored image
            picture = await client.generate(
                row.prompt, width=width, height=height, user=user, steps=row.steps, variation="same"
            )
            total_s, cpu_s = time.monotonic() - start, time.process_time() - cpu
            if number >= 0:
                hit = picture.plan.source is PlanSource.LATENT
                spent = {
                    "forwards_s": _forwards(card.name) - before[0],
                    "embedding_s": _embeddings() - before[1],
                    "cpu_s": cpu_s,
                }
                samples.append(sample(hit, total_s, stages(picture), **spent))
            remaining.advance()
            await asyncio.sleep(pause_s * pauses.uniform(0.5, 1.5))
        if floors:
            drawn = await backends.catalog.jobs.get(picture.job.id)
            found = await embedded_floors.measure(backends, drawn, count=floors, pause_s=pause_s)
    return samples, found


async def let_pictures_start(settings: Settings) -> None:
    """Store a table that lets the model start from its own images, at a similarity that no image reaches."""
    card = served_card(settings)
    hashed, by = card.weights_hash, encoder_hash(encoder_folder(settings.encoder))
    table = KTable((Level(5, 0.999),), model=card.name, weights_hash=hashed, encoder_hash=by,
                   images_from=card.name, images_weights_hash=hashed)  # fmt: skip
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    catalog = await open_catalog(settings.catalog_url)
    kind = profile_kind(settings.image_k_table_alpha, images=True)
    await catalog.profiles.put(kind, profile_of(table), hashed, table_to_json(table))
    await catalog.close()


def _forwards(model: str) -> float:
    """Return the seconds inside the denoiser so far."""
    return float(METRICS.step_seconds.labels(model)._sum.get())


def _embeddings() -> float:
    """Return the seconds inside the encoder so far."""
    return float(METRICS.stage_seconds.labels("embed_forward")._sum.get())


async def measure(arguments: argparse.Namespace) -> None:
    on = machine()
    found: dict[str, Any] = {}
    noop = f"noop:?step_ms={arguments.step_ms}"
    runs = (
        ("noop", noop, arguments.count),
        ("pictures", noop, arguments.pictures_count),
        ("real", arguments.large, arguments.real_count),
    )
    configure_logging("error")  # otherwise each timed request also prints its log line
    for name, large, count in runs:
        if not count:
            continue
        folder = Path(tempfile.mkdtemp(prefix="afterimage-bench-"))
        try:
            own = Settings(data_dir=folder, log_level="error").model_copy(update=_given(large, arguments.encoder))
            if name == "pictures":
                await let_pictures_start(own)
            floors = arguments.floors if name == "noop" else 0
            samples, alone = await run(own, count, arguments.pause_s, floors)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        found[name] = {
            "all": summary(samples),
            "hits": summary([one for one in samples if one.hit]),
            "misses": summary([one for one in samples if not one.hit]),
        }
        print(report(name, found[name]), flush=True)
        if alone:
            found["floors"] = embedded_floors.figures(alone)
            print(embedded_floors.report(found["floors"]), flush=True)
    goals = {"p50_ms": GOAL_P50_S * 1000, "p99_ms": GOAL_P99_S * 1000}
    settings = {key: str(value) for key, value in vars(arguments).items() if key != "out"} | {
        "size": MAIN_SIZE,
        "T": 50,
        "model": noop,
        "event_loop": type(asyncio.get_running_loop()).__module__,
    }
    record("overhead", {**found, "goals": goals}, settings, on=on, folder=arguments.out)


def _given(large: str | None, encoder: str | None) -> dict[str, str]:
    return {name: value for name, value in (("large", large), ("encoder", encoder)) if value}


def report(name: str, found: dict[str, dict[str, Any]]) -> str:
    """Return two tables: quantiles of the overhead, and milliseconds of each part."""
    groups = [group for group in found if found[group]["requests"]]
    quantiles = table(
        [f"{name}: overhead, ms", "requests", "p10", "p50", "p90", "p99", "whole request p50", "its CPU time p50"],
        [[group, *(found[group][key] for key in ("requests", *QUANTILES, "total_p50_ms", "cpu_p50_ms"))]
         for group in groups],
    )  # fmt: skip
    parts = table(
        ["where it goes, ms (p50 / p99)", *groups],
        [[text, *(f"{found[group]['parts_p50_ms'][part]:.2f} / {found[group]['parts_p99_ms'][part]:.2f}"
                  for group in groups)] for part, text in PARTS],
    )  # fmt: skip
    return f"\n{quantiles}\n\n{parts}"


def main(given: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--count", type=int, default=1000, help="requests with the no-op denoiser; 0: none")
    parser.add_argument(
        "--pictures-count", type=int, default=0, help="requests with every finished image embedded; 0: none"
    )
    parser.add_argument("--real-count", type=int, default=200, help="requests with the real denoiser; 0: none")
    parser.add_argument("--floors", type=int, default=100, help="measurements of each floor of the path; 0: none")
    parser.add_argument("--step-ms", type=float, default=1.0, help="milliseconds per step of the no-op denoiser")
    parser.add_argument("--pause-s", type=float, default=0.1, help="mean seconds between two requests")
    parser.add_argument("--large", help="the real model (default: the settings')")
    parser.add_argument("--encoder", help="CLIP encoder (default: the settings')")
    arguments = parser.parse_args(given)
    quiet()
    run_on_loop(measure(arguments))


if __name__ == "__main__":
    main()
