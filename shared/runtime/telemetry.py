"""Metrics with bounded labels, structured logs, and the HTTP page that serves them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import structlog
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from shared.domain.errors import ConfigurationError

_LATENCY_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class Metrics:
    """All metrics; every name has the prefix `afterimage_`."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"afterimage_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"afterimage_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            made = Histogram(f"afterimage_{name}", text, labels, buckets=buckets, registry=registry)
            made.labels = functools.cache(made.labels)  # type: ignore[method-assign]  # a request observes thirty times
            return made

        self.requests = counter(
            "requests",
            "Answers to waiting clients. The share of `source` latent and image is the hit rate; `exact` counts exact "
            "repeats. A job that no client waits for is not counted.",
            "status", "source", "model",
        )  # fmt: skip
        self.refused = counter(
            "refused",
            "Requests refused before acceptance, by error type. InvalidRequestError is the client's mistake, "
            "OverloadedError a full queue, StorageFullError a full disk, LateError a deadline that cannot be met.",
            "reason",
        )
        self.door_refused = counter(
            "door_refused",
            "Calls and HTTP requests that the door refused, by code: no key that works, a key without the role, "
            "one above its rate, or a certificate of another service.",
            "code",
        )
        self.deadlines = counter(
            "deadlines",
            "Jobs with a deadline that ended, by class of AFTERIMAGE_SLO_CLASSES (`none`: the client gave seconds) and "
            "outcome: met, missed (late, dropped or failed). met / (met + missed) is the SLO attainment. Jobs that a "
            "client cancelled in time do not count.",
            "slo", "outcome",
        )  # fmt: skip
        self.http_seconds = histogram(
            "http_seconds",
            "Seconds of one HTTP request of the gateway, by route and status: streams until their end. Status 499: the "
            "client left before the answer began.",
            _LATENCY_S,
            "route", "status",
        )  # fmt: skip
        self.stage_seconds = histogram(
            "stage_seconds",
            "Seconds that a request spent in one stage. Gateway: extract and embed (the calls included), predict, "
            "plan, accept (row committed, task queued). Embedder: embed_forward is the encoder alone, "
            "embed_picture_forward the same for finished images, for which no request waits. Text extractor: "
            "extract_forward, one batch. Worker: fetch (the state), encode (the model's own text encoder), denoise "
            "(first to last step of the shared batch), decode, store (PNG, image and states). Segmenter: segment, the "
            "masks of one finished clip, for which no request waits.",
            _LATENCY_S,
            "stage",
        )
        self.queue_seconds = histogram(
            "queue_seconds",
            "Seconds between acceptance and the first step. This metric grows first when there are too few workers.",
            _LATENCY_S,
        )
        self.queued = gauge(
            "queued_jobs",
            "Jobs that wait for a worker. Each gateway counts them in the catalog at each scrape, so all gateways show "
            "the same number; NaN without an answer within 2 s. At AFTERIMAGE_MAX_QUEUED new jobs are refused.",
        )
        self.batch_rows = histogram(
            "batch_rows",
            "Requests that shared one denoising step. A mean near 1 under load means too many different sizes, or an "
            "AFTERIMAGE_MAX_ROWS of 1.",
            (1, 2, 4, 8, 16, 32, 64),
            "model",
        )
        self.step_seconds = histogram(
            "step_seconds",
            "Seconds of one denoising step of a batch. The rate of the sum over the rate of "
            "afterimage_steps_run_total is seconds per row and step.",
            _LATENCY_S,
            "model",
        )
        self.steps_run = counter("steps_run", "Denoising steps run, one per row of the batch.", "model")
        self.steps_skipped = counter(
            "steps_skipped",
            "Steps' worth of blocks of finished images that took earlier outputs instead (step_reuse, regions).",
            "model",
        )
        self.steps_saved = counter(
            "steps_saved",
            "Denoising steps that a cached state made unnecessary. Saved / (run + saved) is the share of work that the "
            "cache removes. Exact repeats are not counted.",
            "model",
        )
        self.lookups = counter("lookups", "Plans, by source and start step K (of T = 50).", "source", "k")
        self.relations = counter(
            "relations",
            "Plans, by relation to the start's entry and by source. Relations: reroll (same prompt and user, other "
            "seed), edit, topic (another prompt of the user), other (another or an unknown user).",
            "relation", "source",
        )  # fmt: skip
        self.degraded = counter(
            "degraded",
            "Plans made without a service or store that was away, late or wrong. A steady rate means lost hits, never "
            "lost requests.",
            "service",
        )
        self.cache_bytes = gauge("cache_bytes", "Bytes of latents and masks, at most AFTERIMAGE_CACHE_MAX_BYTES.")
        self.cache_entries = gauge("cache_entries", "Entries of the cache that hold a latent or an image.")
        self.cache_states = gauge("cache_states", "Cached latents.")
        self.cache_pictures = gauge(
            "cache_pictures",
            "Finished images that any model can start from, at most AFTERIMAGE_PICTURE_MAX_COUNT.",
        )
        self.cache_picture_bytes = gauge(
            "cache_picture_bytes", "Bytes of those finished images, at most AFTERIMAGE_PICTURE_MAX_BYTES."
        )
        self.quarantined = gauge(
            "quarantined_blobs",
            "Blobs that no row names and that are not deleted yet, at the collector's last pass. Look into a jump "
            "before AFTERIMAGE_QUARANTINE_S is over.",
        )
        self.collection_held = gauge(
            "collection_held",
            "1 while the collector deletes nothing: mismatch (the store belongs to another catalog), unadopted (the "
            "store has no id), large (the pass would delete much). Alert on each of them.",
            "reason",
        )
        self.segmented = counter(
            "clips_segmented",
            "Finished clips, by what came of segmenting them: masks, no_latents (nothing to stitch), no_object and "
            "no_background (the phrase was not found), no_blob (missing or corrupt), no_grid (unknown model), failed. "
            "Only the first can be stitched.",
            "outcome",
        )
        self.pictures_embedded = counter(
            "pictures_embedded",
            "Finished images embedded, which prompts can find from then on. A long lag behind the requests means that "
            "the cache maintainer does not reach the embedder, or that the embedder is too slow.",
        )
        self.checks = counter(
            "checks",
            "Live checks: hits that were generated again from noise and compared, by relation and verdict (pass, "
            "fail). Up to a tenth may fail; beyond that, reuse stops.",
            "relation", "verdict",
        )  # fmt: skip
        self.checks_stopped = gauge(
            "checks_stopped_cells",
            "Cells (relation, source, K of T, or all hits) in which live checks stopped reuse. Alert on more than 0: "
            "states or K tables are corrupt, or too loose. `afterimage cache quality` shows them.",
            "model",
        )
        self.inserted = counter("states_inserted", "States added to the cache, by K; `picture` is an image.", "k")
        self.evicted = counter(
            "states_evicted",
            "States evicted, by policy and K; `picture` is an image. As many as inserted means a full budget, which is "
            "normal: watch afterimage_holes_total and the hit rate.",
            "policy", "k",
        )  # fmt: skip
        self.holes = counter(
            "holes",
            "Plans that found no state at the largest K that their similarity allows: evicted, or never captured. "
            "If there are many, raise AFTERIMAGE_CACHE_MAX_BYTES.",
        )
        self.wider_searches = counter(
            "wider_searches",
            "Lookups that searched the AFTERIMAGE_FURTHER_CANDIDATES nearest entries (ADR 10). Outcomes: later_start "
            "(found a later start), nothing_better, failed (index or catalog away or late).",
            "outcome",
        )
        self.deadline_plans = counter(
            "deadline_plans",
            "Requests whose ordinary plan was predicted to miss their deadline, by what the plan changed: model, steps "
            "(T), start (K or entry), or late (no start within the bound meets the deadline).",
            "change",
        )
        self.predictor_precision = gauge(
            "predictor_precision",
            "Share of predicted hits that were hits. A low share means lookups that find nothing, which are cheap.",
        )
        self.predictor_recall = gauge(
            "predictor_recall",
            "Share of hits that were predicted. Known because AFTERIMAGE_SAMPLE_PREDICTED_MISSES of the predicted "
            "misses are looked up anyway. A low share loses hits: if it stays below .9, set AFTERIMAGE_PREDICTOR to "
            "always and compare.",
        )
        self.predictions = counter("predictions", "Verdicts of the match predictor: hit or miss.", "predicted")
        self.job_attempts = counter(
            "job_attempts",
            "Jobs claimed by a worker. `redelivered` is true for jobs of workers that stopped or lost their lease.",
            "redelivered",
        )
        self.hints_lost = counter(
            "hints_lost", "Events that only improve the cache or its figures and that the bus did not take.", "kind"
        )
        self.unsent = counter(
            "unsent_jobs",
            "Accepted jobs whose task the bus did not take. The sweeper sends them within AFTERIMAGE_SWEEP_S; their "
            "clients wait that much longer.",
        )
        self.assigned = gauge("assigned_workers", "Workers that the global monitor assigned to the model.", "model")
        self.monitor_mode = gauge(
            "monitor_mode",
            "1 for the mode that runs (MoDM §5.3). `throughput` although `quality` is set: no split of the workers "
            "meets the demand.",
            "mode",
        )
        self.monitor_target = gauge("monitor_target_large", "Large models that the heuristic wants, not rounded.")
        self.monitor_pid = gauge("monitor_pid", "Terms of the PID, in workers: output, error, integral.", "term")
        self.monitor_demand = gauge(
            "monitor_demand", "Requests per second in the last AFTERIMAGE_MONITOR_WINDOW_S, by lane.", "lane"
        )
        self.monitor_waiting = gauge(
            "monitor_waiting",
            "Full generations that no worker has taken yet, by lane. Approximate: the monitor shares all waiting "
            "work out by lane.",
            "lane",
        )
        self.monitor_work = gauge(
            "monitor_work",
            "Work in full generations per second, headroom and waiting jobs included. A full generation has 50 steps "
            "of the large model, and as many fewer of a small one as its default T is smaller. Kinds: miss, hit, small "
            "(requests that name a small model).",
            "kind",
        )
        self.monitor_hit_rate = gauge("monitor_hit_rate", "Share of requests that start from a state or an image.")
        self.monitor_k = gauge("monitor_k_share", "Share of requests by start step K (of T = 50).", "k")
        self.monitor_rate = gauge(
            "monitor_rate",
            "Full generations per second that the workers assigned to the model can do. A queue grows while this is "
            "below afterimage_monitor_work.",
            "model",
        )
        self.monitor_doubted = gauge(
            "monitor_doubted_workers",
            "Workers whose reported speed is more than twice off what they finish: throttled, or sharing their device.",
        )
        self.monitor_switches = counter("monitor_switches", "Model changes that the monitor ordered.")
        self.monitor_kept = counter(
            "monitor_kept", "Decisions that changed nothing because the switches would not have paid back."
        )
        self.unreadable_rows = counter(
            "unreadable_rows",
            "Rows that only another version of Afterimage can read. Each process counts a row once, up to 100,000 "
            "rows.",
            "table",
        )
        self.rpc_seconds = histogram(
            "rpc_seconds", "Seconds in a gRPC handler, those between services included.", _LATENCY_S, "method", "code"
        )
        self.event_seconds = histogram(
            "event_seconds",
            "Seconds in the handler of an event of the bus, by kind and outcome: handled, failed (the handler is tried "
            "again) or dropped (the last try failed). Dropped events cost hits or figures, never jobs.",
            _LATENCY_S,
            "kind", "outcome",
        )  # fmt: skip


METRICS = Metrics()
COUNT_S = 2.0
"""Seconds that a scrape waits for a number that is counted on demand."""


def counted_when_scraped(gauge: Gauge, count: Callable[[], Coroutine[Any, Any, int]]) -> None:
    """Set the gauge to the result of `count` at every scrape; NaN without a result in time. `count` runs on this event
    loop."""
    loop = asyncio.get_running_loop()

    def number() -> float:
        if loop.is_closed() or threading.get_ident() == owner:  # the loop cannot wait for itself
            return math.nan
        counting = asyncio.run_coroutine_threadsafe(count(), loop)
        try:
            return counting.result(COUNT_S)
        except Exception:  # no answer, or a process that ends: the other numbers are shown
            counting.cancel()
            return math.nan

    owner = threading.get_ident()
    gauge.set_function(number)


def configure_logging(level: str = "info", *, pretty: bool | None = None) -> None:
    """Log JSON lines to stderr, or coloured text to a terminal. Prompts are logged only with `log_prompts`."""
    pretty = sys.stderr.isatty() if pretty is None else pretty
    renderer: Any = structlog.dev.ConsoleRenderer() if pretty else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # looked up at each line, not once
        cache_logger_on_first_use=False,
    )


def log(service: str) -> Any:
    """Return a structured logger bound to a service's name."""
    return structlog.get_logger(service=service)


@contextlib.contextmanager
def serving_metrics(listen: str) -> Iterator[int]:
    """Serve /metrics on host:port while the block runs, and yield the port; '' serves nothing.

    Raises ConfigurationError when the port is taken.
    """
    if not listen:
        yield 0
        return
    host, _, port = listen.rpartition(":")
    try:
        server, thread = start_http_server(int(port), addr=host or "127.0.0.1")
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigurationError(
            f"metrics_listen: cannot listen on {listen} ({error}); name another host:port, or '' for none"
        ) from error
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
