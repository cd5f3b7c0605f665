"""Metrics with bounded labels, structured logs, and the HTTP page that serves them."""

from __future__ import annotations

import asyncio
import contextlib
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
    """Every metric in one place; the prefix is `afterimage_`."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"afterimage_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"afterimage_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"afterimage_{name}", text, labels, buckets=buckets, registry=registry)

        self.requests = counter("requests", "Finished requests.", "status", "source", "model")
        self.refused = counter("refused", "Requests refused before acceptance.", "reason")
        self.stage_seconds = histogram("stage_seconds", "Seconds a request spent in a stage.", _LATENCY_S, "stage")
        self.queue_seconds = histogram("queue_seconds", "Seconds between acceptance and the first step.", _LATENCY_S)
        self.queued = gauge("queued_jobs", "Jobs waiting for a worker.")
        self.batch_rows = histogram("batch_rows", "Requests in one denoising step.", (1, 2, 4, 8, 16, 32, 64), "model")
        self.step_seconds = histogram("step_seconds", "Seconds of one denoising step of a batch.", _LATENCY_S, "model")
        self.steps_run = counter("steps_run", "Denoising steps run.", "model")
        self.steps_saved = counter("steps_saved", "Denoising steps a cached state made unnecessary.", "model")
        self.lookups = counter("lookups", "Plans by source and start step K (of T = 50).", "source", "k")
        self.degraded = counter("degraded", "Plans made without a service that was away, late or wrong.", "service")
        self.cache_bytes = gauge("cache_bytes", "Bytes of cached states.")
        self.cache_entries = gauge("cache_entries", "Entries in the cache.")
        self.cache_states = gauge("cache_states", "States in the cache.")
        self.cache_pictures = gauge("cache_pictures", "Finished pictures that any model can start from.")
        self.cache_picture_bytes = gauge("cache_picture_bytes", "Bytes of those pictures.")
        self.quarantined = gauge("quarantined_blobs", "Blobs that nothing names and that are not deleted yet.")
        self.collection_held = gauge("collection_held", "1 while nothing is collected, by reason.", "reason")
        self.pictures_embedded = counter("pictures_embedded", "Finished pictures embedded for the cache.")
        self.inserted = counter("states_inserted", "States added to the cache, by K or as picture.", "k")
        self.evicted = counter("states_evicted", "States evicted, by K or as picture.", "policy", "k")
        self.holes = counter("holes", "Plans that wished a K that was not there.")
        self.wider_searches = counter("wider_searches", "Lookups that searched further away (ADR 10).", "outcome")
        self.predictor_precision = gauge("predictor_precision", "Share of predicted hits that were hits.")
        self.predictor_recall = gauge("predictor_recall", "Share of hits that were predicted (misses are sampled).")
        self.predictions = counter("predictions", "Match predictions.", "predicted")
        self.job_attempts = counter("job_attempts", "Jobs claimed by a worker.", "redelivered")
        self.hints_lost = counter("hints_lost", "Facts nobody was promised that the bus did not take.", "kind")
        self.unsent = counter("unsent_jobs", "Accepted jobs whose task the bus did not take; the sweeper sends them.")
        self.assigned = gauge("assigned_workers", "Workers by the model that the monitor gave them.", "model")
        self.monitor_mode = gauge("monitor_mode", "1 for the mode that is run (MoDM §5.3).", "mode")
        self.monitor_target = gauge("monitor_target_large", "Large models that the heuristic wants, not rounded.")
        self.monitor_pid = gauge("monitor_pid", "Terms of the PID: output, error, integral.", "term")
        self.monitor_demand = gauge("monitor_demand", "Requests a second in the monitor's window.", "lane")
        self.monitor_waiting = gauge("monitor_waiting", "Full generations that are in nobody's hands yet.", "lane")
        self.monitor_work = gauge("monitor_work", "Full generations a second to be done.", "kind")
        self.monitor_hit_rate = gauge("monitor_hit_rate", "Share of requests that start from something.")
        self.monitor_k = gauge("monitor_k_share", "Share of requests by K of 50.", "k")
        self.monitor_rate = gauge("monitor_rate", "Full generations a second of all workers so assigned.", "model")
        self.monitor_doubted = gauge("monitor_doubted_workers", "Workers that are not as fast as they say.")
        self.monitor_switches = counter("monitor_switches", "Changes of a worker's model that were ordered.")
        self.monitor_kept = counter("monitor_kept", "Decisions whose switches would not have paid back.")
        self.unreadable_rows = counter("unreadable_rows", "Rows that only another version can read.", "table")
        self.rpc_seconds = histogram("rpc_seconds", "Seconds in a gRPC handler.", _LATENCY_S, "method", "code")


METRICS = Metrics()
COUNT_S = 2.0
"""How long a scrape waits for a number that is counted for it."""


def counted_when_scraped(gauge: Gauge, count: Callable[[], Coroutine[Any, Any, int]]) -> None:
    """From now on every scrape counts anew, on this event loop; not a number where there is no answer in time."""
    loop = asyncio.get_running_loop()

    def number() -> float:
        if loop.is_closed() or threading.get_ident() == owner:  # the loop cannot wait for itself
            return math.nan
        counting = asyncio.run_coroutine_threadsafe(count(), loop)
        try:
            return counting.result(COUNT_S)
        except Exception:  # no answer, or a process that ends: all other numbers are shown all the same
            counting.cancel()
            return math.nan

    owner = threading.get_ident()
    gauge.set_function(number)


def configure_logging(level: str = "info", *, pretty: bool | None = None) -> None:
    """JSON lines on stderr, or coloured text on a terminal. No prompt is logged unless `log_prompts` is set."""
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
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # stderr as it is then, not as it was
        cache_logger_on_first_use=False,
    )


def log(service: str) -> Any:
    """A structured logger bound to a service's name."""
    return structlog.get_logger(service=service)


@contextlib.contextmanager
def serving_metrics(listen: str) -> Iterator[int]:
    """Serves /metrics on host:port while the block runs, not at all for ''; ConfigurationError when the port is taken.

    Yields the port.
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
