"""A cluster of an earlier version is replaced by this one under load, one replica after the other: nothing is lost."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts.stack.servers import Server
from scripts.stack.stack import SERVICES, variable
from tests.conftest import ROOT
from tests.contracts.servers import REQUIRED, folder
from tests.faults.cluster import FaultStack, Form, asked, build_models
from tests.faults.conftest import Say
from tests.faults.inspection import inspect, outside, rest
from tests.faults.load import Load
from tests.faults.servers import all_servers
from tests.faults.verdict import judge
from tests.forking import ForkedServer, ForkedStack, Parent, shared_parent

EARLIER = "a8a2b5d3"
"""The last commit without API keys, quotas, erasure and fair shares; its catalog is at revision 0010."""
FORM = Form(
    jobs=2000, clients=4, step_ms=30.0, kills_until=0.0, servers=0, asked_again=0, redrawers=1, limit_s=900.0,
    replicas={"gateway": 2, "gpu_worker": 2},
)  # fmt: skip
ORDER = ("gpu_worker", *(one for one in SERVICES if one not in ("gpu_worker", "gateway")), "gateway")
"""Workers before gateways (docs/how-to/upgrade.md)."""
TOGETHER = 4
"""Images that clients get between two replacements."""


class UpgradedStack(ForkedStack, FaultStack):
    """Starts with the code of an earlier version; what is upgraded runs this version's."""

    def __init__(self, earlier: Parent, *args: Any, **changes: Any) -> None:
        super().__init__(*args, **changes)
        self._earlier = earlier

    def _service(self, name: str) -> Server:
        server = super()._service(name)
        assert isinstance(server, ForkedServer)
        return replace(server, parent=self._earlier)

    def upgrade(self, name: str) -> None:
        """Stop a replica, which finishes its work, and start it again with this version's code."""
        server = self.processes[name]
        assert isinstance(server, ForkedServer)
        server.parent = shared_parent()
        self.restart(name)


@pytest.fixture
def earlier(tmp_path: Path) -> Iterator[Parent]:
    """A process that services of the earlier version are forked from."""
    archive = subprocess.run(["git", "-C", ROOT, "archive", EARLIER], capture_output=True, check=False)
    if archive.returncode:
        (pytest.fail if "history" in REQUIRED else pytest.skip)(f"commit {EARLIER} is not here")
    subprocess.run(["tar", "-x", "-C", tmp_path], input=archive.stdout, check=True)
    # its generated code belongs to the grpcio of its time
    made = subprocess.run(
        [tmp_path / "scripts" / "protos.sh"],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr.decode()
    parent = Parent(tmp_path)
    yield parent
    parent.close()


async def test_replicas_are_replaced_one_by_one(
    earlier: Parent, tmp_path_factory: pytest.TempPathFactory, say: Say
) -> None:
    all_servers()
    models, chance = build_models(tmp_path_factory.mktemp("models"), FORM), random.Random(1)
    stack = UpgradedStack(earlier, folder() / "upgrade", models, FORM, resend_s=10.0)
    await asyncio.to_thread(stack.start)
    try:
        load = Load(stack.gateways, asked(FORM, chance), chance)
        running = asyncio.create_task(load.run(FORM.clients))
        async with asyncio.timeout(FORM.limit_s):
            await _until(load, 2 * TOGETHER)
            for name in (name for service in ORDER for name in stack.names(service)):
                before = load.done
                await asyncio.to_thread(stack.upgrade, name)
                say(f"{name}: {load.done - before} images while it was replaced")
                await _until(load, TOGETHER)
            load.enough()
            await running
        async with outside(stack) as backends:
            await rest(backends, FORM.settle_s)
            answers = {key: found for key, found in load.every_answer.items() if key in load.answers}
            paths = {path.name: str(path) for path in models.iterdir()}
            left, jobs = await inspect(backends, stack.environment[variable("catalog_url")], paths, answers)
    finally:
        await asyncio.to_thread(stack.stop)
    verdict = judge(left)
    say(f"{len(jobs)} jobs; clients saw {dict(load.errors)}; longest wait {max(load.waited_s):.1f} s")
    say(str(verdict), last=True)
    assert verdict.clean, verdict
    assert not load.failed


async def _until(load: Load, more: int) -> None:
    """Wait for so many images."""
    wanted = load.done + more
    while load.done < wanted:
        await asyncio.sleep(0.1)
