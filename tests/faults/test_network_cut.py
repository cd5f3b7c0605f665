"""A worker cut off from the broker or from the catalog, a gateway from the catalog: nobody is told, and all is well
afterwards.

Six seconds by default, half a minute with FAULTS=full, in which heartbeats fail and timeouts run out.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts.stack.stack import variable
from shared.client import AsyncClient
from shared.domain.errors import AfterimageError
from shared.domain.types import JobState
from shared.service.backends import Backends
from tests.contracts.servers import folder
from tests.faults.cluster import SHORT, FaultStack, asked, build_models
from tests.faults.conftest import Say
from tests.faults.inspection import inspect, outside, rest
from tests.faults.load import Load
from tests.faults.network import Apart, apart
from tests.faults.servers import all_servers
from tests.faults.verdict import judge
from tests.forking import ForkedStack

CUT_S = 30.0 if os.environ.get("FAULTS") == "full" else 6.0
CLIENTS = 6
WELL_S = 120.0
"""How long it may take until the one that was cut off works again."""
FORM = replace(SHORT, jobs=5000, clips=0, step_ms=60.0, replicas={"gateway": 2, "gpu_worker": 2})
WORKER, GATEWAY, OTHER = "gpu_worker-1", "gateway-1", "gpu_worker-2"


class CutStack(ForkedStack, FaultStack):
    """Both workers and one gateway each in a namespace of its own; the broker and the catalog at the links' ends: the
    first worker's leads to the broker, the gateway's and the other worker's to the catalog."""

    def __init__(self, models: Path, worker: Apart, gateway: Apart, other: Apart) -> None:
        # its links are between this machine and itself
        super().__init__(folder() / "cut", models, FORM, allow_anonymous="always")
        self.apart = {WORKER: worker, GATEWAY: gateway, OTHER: other}
        other.reach(gateway.far)
        self._hosts = {"rabbitmq": worker.far, "postgresql": gateway.far}
        self._hosts |= {name: link.inside for name, link in self.apart.items()}

    def host(self, name: str) -> str:
        return self._hosts.get(name, self.apart[GATEWAY].outside)

    def namespace(self, name: str) -> str:
        return self.apart[name].namespace if name in self.apart else ""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CutStack]:
    all_servers()
    with ExitStack() as opened:
        links = [opened.enter_context(apart(number)) for number in range(3)]
        models = build_models(tmp_path_factory.mktemp("models"), FORM)
        made = CutStack(models, *links)
        opened.enter_context(made)
        yield made


@pytest.fixture
async def backends(stack: CutStack) -> AsyncIterator[Backends]:
    async with outside(stack) as opened:
        yield opened


async def test_a_worker_cut_off_from_the_broker(stack: CutStack, backends: Backends, say: Say) -> None:
    async with _Cut(stack, WORKER) as cut:
        await cut.well(await _draws_again(stack, backends, WORKER))
    say(f"worker ↔ broker cut for {CUT_S:g} s: {cut}")
    assert not cut.errors  # the other worker draws, and what was begun is told by its row
    await _all_is_well(stack, backends, cut.load)


async def test_a_worker_cut_off_from_the_catalog(stack: CutStack, backends: Backends, say: Say) -> None:
    """What it was drawing is another's after a lease; what it takes meanwhile it can but give back."""
    async with _Cut(stack, OTHER) as cut:
        await cut.well(await _draws_again(stack, backends, OTHER))
    say(f"worker ↔ catalog cut for {CUT_S:g} s: {cut}")
    assert not cut.errors
    await _all_is_well(stack, backends, cut.load)
    jobs = [await backends.catalog.jobs.get(answers[0].job_id) for answers in cut.load.answers.values()]
    assert max(job.crashes for job in jobs) <= 1, "the one lease that ran out"
    assert not any(job.failures for job in jobs)


async def _draws_again(stack: CutStack, backends: Backends, name: str) -> Callable[[], Awaitable[bool]]:
    """Whether this worker draws a job that is newer than all there are now."""
    mine = f"-{stack.processes[name].pid}"
    (newest,), _ = await backends.catalog.jobs.list(tenant=None, state=None, limit=1)

    async def check() -> bool:
        running, _ = await backends.catalog.jobs.list(tenant=None, state=JobState.RUNNING, limit=50)
        return any(job.worker.endswith(mine) and job.id > newest.id for job in running)

    return check


async def test_a_gateway_cut_off_from_the_catalog(stack: CutStack, backends: Backends, say: Say) -> None:
    async def answers_again() -> bool:
        try:
            async with AsyncClient(stack.address(GATEWAY), retry_s=0.0) as client:
                return bool((await client.generate("after the cut", timeout_s=10.0, **TINY)).png)
        except AfterimageError:
            return False

    async with _Cut(stack, GATEWAY) as cut:
        await cut.well(answers_again)
    say(f"gateway ↔ catalog cut for {CUT_S:g} s: {cut}")
    await _all_is_well(stack, backends, cut.load)


TINY: dict[str, Any] = {"steps": 5, "width": 32, "height": 32}


class _Cut:
    """Clients ask all the while; entered when the link is mended."""

    def __init__(self, stack: CutStack, name: str) -> None:
        chance = random.Random(name)
        self.load = Load(stack.gateways, asked(FORM, chance, name), chance)
        self._link = stack.apart[name]
        self.answered = 0
        self.well_s = 0.0

    @property
    def errors(self) -> dict[str, int]:
        return dict(self.load.errors)

    async def __aenter__(self) -> _Cut:
        self._running = asyncio.create_task(self.load.run(CLIENTS))
        await self._until(CLIENTS)
        before = self.load.done
        self._link.cut()
        try:
            await asyncio.sleep(CUT_S)
        finally:
            self._link.mend()
        self._mended = time.monotonic()
        self.answered = self.load.done - before
        return self

    async def _until(self, done: int) -> None:
        async with asyncio.timeout(WELL_S):
            while self.load.done < done:
                await asyncio.sleep(0.1)

    async def well(self, check: Callable[[], Awaitable[bool]]) -> None:
        """Waits until the one that was cut off does its work again."""
        async with asyncio.timeout(WELL_S):
            while not await check():
                await asyncio.sleep(0.1)
        self.well_s = time.monotonic() - self._mended

    async def __aexit__(self, *_: object) -> None:
        self.load.enough()
        async with asyncio.timeout(WELL_S):
            await self._running

    def __str__(self) -> str:
        return (
            f"{self.answered} pictures meanwhile, clients saw {self.errors or 'no error'}, waited at most "
            f"{max(self.load.waited_s):.1f} s; it worked again {self.well_s:.1f} s after"
        )


async def _all_is_well(stack: CutStack, backends: Backends, load: Load) -> None:
    await rest(backends, WELL_S)
    model, catalog = (stack.environment[variable(setting)] for setting in ("large", "catalog_url"))
    left, _ = await inspect(backends, catalog, {"large": model}, load.answers, interrupted_only=True)
    assert judge(left).clean, judge(left)
