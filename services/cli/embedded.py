"""The all-in-one process: every service in one process, with the code and the gRPC calls of the cluster mode."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.runtime.addresses import from_here
from shared.runtime.settings import Settings

if TYPE_CHECKING:  # the servers' imports take a second, which --help need not wait for
    from shared.runtime.clock import Clock
    from shared.service import Running, Service

RUNNING_FILE = "running.json"
"""File beside the catalog with the addresses of the process that works in the data directory."""


def all_services(workers: int = 1) -> list[Service]:
    """Return every service, with `workers` GPU workers. torch is imported here and not before.

    The gateway comes first: it opens last and drains first. The cache maintainer comes last: it still receives the
    events of jobs that workers finish while they drain.
    """
    from services.cache_maintainer.service import CacheMaintainerService
    from services.embedder.service import EmbedderService
    from services.gateway.service import GatewayService
    from services.global_monitor.service import GlobalMonitorService
    from services.gpu_worker.jobs.process import WorkerProcess
    from services.gpu_worker.service import GpuWorkerService
    from services.match_predictor.service import MatchPredictorService
    from services.retriever.service import RetrieverService
    from services.segmenter.service import SegmenterService
    from services.text_extractor.service import TextExtractorService

    _quiet_libraries()
    process = WorkerProcess()
    return [
        GatewayService(),
        *(GpuWorkerService(number + 1, process) for number in range(workers)),
        RetrieverService(),
        MatchPredictorService(),
        EmbedderService(),
        TextExtractorService(),
        GlobalMonitorService(),
        SegmenterService(),
        CacheMaintainerService(),
    ]


def _quiet_libraries() -> None:
    """Silence the progress bars of libraries: the commands show their own."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def settings_from(**given: Any) -> Settings:
    """Return the settings of the environment, overridden by the options that are not None."""
    return Settings(**{name: value for name, value in given.items() if value is not None})


@contextlib.contextmanager
def alone(settings: Settings) -> Iterator[Settings]:
    """Yield the settings for a process that serves one command only: a socket that this user alone reaches, no
    metrics page, no HTTP, no key and no TLS."""
    changes: dict[str, Any] = {"metrics_listen": "", "http_listen": "", "allow_anonymous": "loopback"}
    changes |= {"tls_certificate": "", "tls_key": ""}
    with tempfile.TemporaryDirectory(prefix="afterimage-") as folder:  # its mode is 0700
        yield settings.model_copy(update=changes | {"listen": f"unix:{folder}/public.sock"})


@contextlib.asynccontextmanager
async def embedded(settings: Settings, clock: Clock | None = None) -> AsyncIterator[Running]:
    """Run every service in this process, on a private socket, until the block ends. clock: None is the system's."""
    from shared.models.devices import placed
    from shared.service import running

    with alone(placed(settings)) as private:
        async with running(all_services(settings.workers), private, clock=clock) as process:
            yield process


@contextlib.contextmanager
def announced(process: Running, settings: Settings) -> Iterator[None]:
    """Keep a file in the data directory with the addresses that this process listens on."""
    path = settings.data_dir / RUNNING_FILE
    facts = {
        "address": from_here(process.address),
        "http": from_here(process.http_address),
        "internal": process.context.internal_address,
        "pid": os.getpid(),
    }
    path.write_text(json.dumps(facts))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def found_running(data_dir: Path) -> dict[str, Any] | None:
    """Return the file's content when the process that wrote it still runs; else None."""
    try:
        facts: dict[str, Any] = json.loads((data_dir / RUNNING_FILE).read_text())
        with contextlib.suppress(PermissionError):  # the process runs, as another user
            os.kill(int(facts["pid"]), 0)
    except (OSError, ValueError, KeyError):
        return None
    return facts
