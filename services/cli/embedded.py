"""The all-in-one process: every service of the embedded mode, the same code with the same gRPC calls."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.runtime.settings import Settings

if TYPE_CHECKING:  # the servers' imports take a second that --help need not wait for
    from shared.runtime.clock import Clock
    from shared.service import Running, Service

RUNNING_FILE = "running.json"
"""Beside the catalog while a process works in a data directory: where it listens."""


def all_services(workers: int = 1) -> list[Service]:
    """With so many GPU workers. The gateway first, which opens last and drains first; the cache maintainer last, so
    that it still hears what a worker finishes while it drains. torch is imported here and not before."""
    from services.cache_maintainer.service import CacheMaintainerService
    from services.embedder.service import EmbedderService
    from services.gateway.service import GatewayService
    from services.global_monitor.service import GlobalMonitorService
    from services.gpu_worker.jobs.process import WorkerProcess
    from services.gpu_worker.service import GpuWorkerService
    from services.match_predictor.service import MatchPredictorService
    from services.retriever.service import RetrieverService

    _quiet_libraries()
    process = WorkerProcess()
    return [
        GatewayService(),
        *(GpuWorkerService(number + 1, process) for number in range(workers)),
        RetrieverService(),
        MatchPredictorService(),
        EmbedderService(),
        GlobalMonitorService(),
        CacheMaintainerService(),
    ]


def _quiet_libraries() -> None:
    """Loading weights is our progress to show, not a library's."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def settings_from(**given: Any) -> Settings:
    """Settings from the environment, with every option that was given on the command line on top."""
    return Settings(**{name: value for name, value in given.items() if value is not None})


def alone(settings: Settings) -> Settings:
    """The same, for a process that serves only the command that starts it: any free port, no metrics page."""
    changes: dict[str, Any] = {"listen": "127.0.0.1:0", "metrics_listen": ""}
    return settings.model_copy(update=changes)


@contextlib.asynccontextmanager
async def embedded(settings: Settings, clock: Clock | None = None) -> AsyncIterator[Running]:
    """Everything in this process, on a port of its own, until the block ends; `clock`: None is the system's."""
    from shared.models.devices import placed
    from shared.service import running

    async with running(all_services(settings.workers), alone(placed(settings)), clock=clock) as process:
        yield process


@contextlib.contextmanager
def announced(process: Running, settings: Settings) -> Iterator[None]:
    """Says in the data directory where this process listens, as long as it does."""
    path = settings.data_dir / RUNNING_FILE
    facts = {"address": process.address, "internal": process.context.internal_address, "pid": os.getpid()}
    path.write_text(json.dumps(facts))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def found_running(data_dir: Path) -> dict[str, Any] | None:
    """What the process that works in this data directory said; None when there is none (any more)."""
    try:
        facts: dict[str, Any] = json.loads((data_dir / RUNNING_FILE).read_text())
        with contextlib.suppress(PermissionError):  # it is there, and another user's
            os.kill(int(facts["pid"]), 0)
    except (OSError, ValueError, KeyError):
        return None
    return facts
