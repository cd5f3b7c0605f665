"""A tiny random checkpoint, built once and loaded once per mode; workers that run it, or a denoiser that only waits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import torch

from services.gpu_worker.families import Family, load_family
from services.gpu_worker.families.unet import UNetFamily
from services.gpu_worker.jobs import endings as endings_module
from services.gpu_worker.models import measuring
from shared.models import find_card
from shared.runtime.telemetry import configure_logging
from tests import tiny
from tests.unit.gpu_worker.worker import SLOW, WorkerBench, running_worker

torch.set_num_threads(1)

LoadFamily = Callable[[int], Family]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("tiny"), clip=False)


@pytest.fixture(scope="session")
def load(tiny_folder: Path) -> LoadFamily:
    """The tiny model by batch_invariant; each is loaded once."""
    loaded: dict[int, Family] = {}

    def family(batch_invariant: int = 0) -> Family:
        if batch_invariant not in loaded:
            card = find_card(str(tiny_folder / "large"))
            loaded[batch_invariant] = load_family(card, batch_invariant=batch_invariant)
        return loaded[batch_invariant]

    return family


@pytest.fixture(scope="session")
def family(load: LoadFamily) -> UNetFamily:
    found = load(0)
    assert isinstance(found, UNetFamily)
    return found


@pytest.fixture
async def bench(tiny_folder: Path, tmp_path: Path) -> AsyncIterator[WorkerBench]:
    """The tiny real model, bit-equal."""
    large = str(tiny_folder / "large")
    async with running_worker(tmp_path / "data", large, batch_invariant=2, state_codec="fp32") as running:
        yield running


@pytest.fixture
async def slow(tmp_path: Path) -> AsyncIterator[WorkerBench]:
    """A denoiser that takes 20 ms a step: time to interfere."""
    async with running_worker(tmp_path / "data", SLOW, lease_s=0.6) as running:
        yield running


@pytest.fixture
def plain_logs() -> None:
    """As in a service: the pretty tracebacks of unconfigured logs print every local tensor, which takes seconds."""
    configure_logging(pretty=False)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings_module, "RETRY_S", 0.01)
    monkeypatch.setattr(endings_module, "BUSY_RETRY_S", 0.05)
    monkeypatch.setattr(measuring, "STEPS", 2)  # the warm-up and one step: a worker starts in each of many tests
