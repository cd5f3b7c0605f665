"""The stack of test_cluster.py, and its calls that are watched."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

from scripts.stack import rabbitmq
from scripts.stack.servers import HOST, Server, free_port
from shared.client import Accepted, AsyncClient, Picture, Progress
from tests.conftest import ROOT
from tests.faults.cluster import SlowStack
from tests.forking import ForkedStack

LIMIT_S = 240.0


class ClusterStack(ForkedStack, SlowStack):
    """Long jobs take their time, but not the processor's. With MinIO, each service has credentials of its own."""

    step_ms = 10.0
    api_port = 0

    def start_servers(self) -> None:
        super().start_servers()
        if "minio" in self.processes:
            self.make_credentials()

    def start_server(self, name: str) -> Server:
        if name != "rabbitmq":
            return super().start_server(name)
        self.api_port = free_port()
        return rabbitmq.start(self.folder / name, self.host(name), api_port=self.api_port)

    def make_credentials(self) -> None:
        command = [sys.executable, "-m", "services", "credentials", str(self.folder / "credentials")]
        command += ["--rabbitmq-api", f"http://{HOST}:{self.api_port}"]
        subprocess.run(command, cwd=ROOT, env={**os.environ, **self.environment}, check=True)

    def own(self, name: str) -> dict[str, str]:
        if "minio" not in self.processes:
            return {}
        lines = (self.folder / "credentials" / f"{name.rpartition('-')[0]}.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)


class Watched:
    """A call that waits for its picture, and what was heard meanwhile."""

    def __init__(self, client: AsyncClient, prompt: str, **fields: Any) -> None:
        self.job_id = ""
        self.accepted, self.steps, self._news = asyncio.Event(), 0, asyncio.Event()
        self.task = asyncio.create_task(self._watch(client, prompt, fields))

    async def _watch(self, client: AsyncClient, prompt: str, fields: dict[str, Any]) -> Picture:
        async for event in client.generate_stream(prompt, timeout_s=LIMIT_S, **fields):
            match event:
                case Accepted(job_id=job_id):
                    self.job_id = job_id
                    self.accepted.set()
                case Progress(step=step):
                    self.steps = max(self.steps, step)
                    self._news.set()
                case Picture():
                    return event
        raise AssertionError("the stream ended without a picture")

    async def past(self, step: int) -> None:
        """Until so many steps are behind it."""
        async with asyncio.timeout(LIMIT_S):
            while self.steps < step:
                self._news.clear()
                news = asyncio.create_task(self._news.wait())
                await asyncio.wait([news, self.task], return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                assert not self.task.done(), f"it was done before anything could happen to it: {self.task}"
