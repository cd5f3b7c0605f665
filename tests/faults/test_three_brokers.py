"""One of three RabbitMQ nodes is lost under load, comes back, and another one is lost: nothing is."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from scripts.stack import rabbitmq
from scripts.stack.servers import HOST, Server
from shared.domain.types import JobState
from shared.runtime.settings import Settings
from tests import tiny
from tests.contracts.servers import folder, url_of
from tests.faults.conftest import Say
from tests.faults.load import Load
from tests.flows.house import SLOW, house

NODES = 3
MORE = 5
"""Images that clients get in each state of the cluster."""
BACK_S = 90.0


class Door:
    """A port that leads to a node that lives, as a load balancer's does."""

    def __init__(self, nodes: list[Server]) -> None:
        self._nodes = nodes
        self._chance = random.Random(0)
        self.used: list[Server] = []
        """Nodes of the connections so far, the latest one last."""

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Yield the URL of the port."""
        async with await asyncio.start_server(self._lead, HOST, 0) as server:
            port = server.sockets[0].getsockname()[1]
            yield self._nodes[0].url.replace(f":{urlsplit(self._nodes[0].url).port}/", f":{port}/")

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for node in self._chance.sample(self._nodes, len(self._nodes)):
            with contextlib.suppress(OSError):
                there = await asyncio.open_connection(HOST, urlsplit(node.url).port)
                self.used.append(node)
                await asyncio.gather(_pipe(reader, there[1]), _pipe(there[0], writer))
                return
        writer.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.fixture
def nodes() -> list[Server]:
    """Three nodes of one cluster, not started yet."""
    if rabbitmq.find() is None:
        url_of("rabbitmq")  # skips, or fails where it is required
    home = folder() / "three"
    names = [f"node{number}" for number in range(NODES)]
    peers = "".join(
        f"cluster_formation.classic_config.nodes.{at} = {name}@localhost\n" for at, name in enumerate(names, 1)
    )
    found = [
        rabbitmq.node(
            home / name, name=name, more=f"cluster_formation.peer_discovery_backend = classic_config\n{peers}"
        )
        for name in names
    ]
    shared = {key: found[0].environment[key] for key in ("HOME", "ERL_EPMD_PORT")}  # one cookie, one port mapper
    for node in found:
        node.environment = {**node.environment, **shared}
    return found


@pytest.fixture
async def cluster(nodes: list[Server]) -> AsyncIterator[list[Server]]:
    try:
        for node in nodes:  # the first one makes the cluster
            await asyncio.to_thread(node.start)
        yield nodes
    finally:
        for node in nodes:
            await asyncio.to_thread(node.stop, 10.0)


async def test_any_one_of_three_nodes_may_be_lost(
    cluster: list[Server], settings: Settings, tmp_path: Path, say: Say
) -> None:
    door = Door(cluster)
    encoder = str(tiny.build_clip(tmp_path / "models") / "clip")
    changes = {"large": SLOW, "encoder": encoder, "torch_threads": 1, "sweep_s": 0.5, "resend_s": 10.0}
    async with door.open() as url, house(settings.model_copy(update=changes | {"bus_url": url})) as it:
        requests = {f"key-{n}": {"prompt": f"cube {n}", "seed": n, "steps": 20} for n in range(2000)}
        load = Load([it.process.address, it.process.address], requests, random.Random(1))
        running = asyncio.create_task(load.run(4))
        await _more(load)
        for _ in range(2):  # the second loss shows that the first node holds everything again
            lost = door.used[-1]
            await asyncio.to_thread(lost.kill)
            waited_s = await _more(load)
            await asyncio.to_thread(lost.start)
            await _more(load)
            say(f"{MORE} images took {waited_s:.1f} s after the loss; {load.done} so far")
        load.enough()
        await running
        jobs = (await it.backends.catalog.jobs.list(limit=2000))[0]
        assert {job.state for job in jobs} == {JobState.SUCCEEDED}
        assert {job.id for job in jobs} == {answer.job_id for one in load.answers.values() for answer in one}
        assert all(len(set(one)) == 1 for one in load.answers.values())
        assert await it.backends.bus.dead_letters() == []
    say(f"{len(jobs)} jobs; clients saw {dict(load.errors)}; longest wait {max(load.waited_s):.1f} s", last=True)


async def _more(load: Load) -> float:
    """Wait for some more images; return the seconds that they took."""
    wanted, begun = load.done + MORE, time.monotonic()
    async with asyncio.timeout(BACK_S):
        while load.done < wanted:
            await asyncio.sleep(0.1)
    return time.monotonic() - begun
