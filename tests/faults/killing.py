"""Kills services and servers under load, and starts them again."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

from scripts.stack.servers import StackError
from scripts.stack.stack import PORTS, Stack
from shared.domain.types import Job
from tests.faults.cluster import Form
from tests.faults.load import Load

DOWN_S = 1.0
"""A killed server stays away for so long at least."""


class Killer:
    """Everything is started again at once, as whoever runs the services would."""

    def __init__(self, stack: Stack, form: Form, chance: random.Random) -> None:
        self._stack, self._form, self._chance = stack, form, chance
        self._begun = time.monotonic()
        self.killed: list[tuple[float, str]] = []
        """(seconds since the beginning, name)"""
        self.died: list[str] = []
        """What ended although nobody killed it."""
        self.servers_killed: dict[str, dict[str, float]] = {}
        """Of each server: seconds until it answered again, and calls in flight when it was killed."""
        self._away: dict[str, asyncio.Task[None]] = {}

    @property
    def away(self) -> list[str]:
        return sorted(name for name, task in self._away.items() if not task.done())

    @property
    def kinds(self) -> dict[str, int]:
        return dict(Counter(name.rpartition("-")[0] or name for _, name in self.killed))

    async def at_work(self, running: Callable[[], Awaitable[Sequence[Job]]], end: Callable[[], bool]) -> None:
        """A worker as soon as one of its jobs can be resumed: however fast the machine is, one is."""
        while not end():
            pids = {name: self._stack.processes[name].pid for name in self._stack.names("gpu_worker")}
            if (name := in_the_middle(await running(), pids)) is not None:
                self._kill(name)
                break
            await asyncio.sleep(0.02)

    async def services(self, enough: Callable[[], bool]) -> None:
        """One after the other until `enough()`; the last ones may still be starting then."""
        while len(self.killed) < self._form.most_kills:
            await self._pause(enough)
            if enough():
                break
            self._look()
            if (name := self._next()) is not None:
                self._kill(name)

    async def _pause(self, enough: Callable[[], bool]) -> None:
        end = time.monotonic() + self._chance.uniform(*self._form.kill_s)
        while time.monotonic() < end and not enough():
            await asyncio.sleep(0.1)

    def _next(self) -> str | None:
        """A kind by its weight, then one of its replicas; None when that is still starting, or too many are."""
        if len(self.away) >= self._form.most_away:
            return None
        kinds, weights = zip(*sorted(self._form.weights.items()), strict=True)
        kind = self._chance.choices(kinds, weights)[0]
        serving = [name for name in self._stack.names(kind) if name not in self.away]
        return self._chance.choice(serving) if serving else None

    def _kill(self, name: str) -> None:
        self._stack.kill(name)
        self.killed.append((round(time.monotonic() - self._begun, 2), name))
        self._away[name] = asyncio.create_task(self._again(name))

    async def _again(self, name: str) -> None:
        """Started until it serves: a service ends by itself when its servers are away for too long."""
        for left in reversed(range(3)):
            try:
                await asyncio.to_thread(self._stack.processes[name].start)
                return
            except StackError:
                if not left:
                    raise

    def _look(self) -> None:
        for name in self._stack.names():
            if name not in self.away and not self._stack.processes[name].alive:
                self.died.append(name)
                self._away[name] = asyncio.create_task(self._again(name))

    async def all_back(self) -> None:
        """Also when one does not come back: what is still starting when the stack is stopped would outlive it."""
        await self._started()
        self._look()
        await self._started()

    async def _started(self) -> None:
        """Every start has ended; then the error of one that failed."""
        if self._away:
            await asyncio.wait(self._away.values())
        for task in self._away.values():
            task.result()

    async def servers(self, load: Load, end: Callable[[], bool]) -> None:
        """Each of them once, in an order by chance; the next when some jobs were answered in between."""
        names = [name for name in self._stack.names() if any(name in port.programs for port in PORTS)]
        for name in self._chance.sample(names, self._form.servers):
            begun, in_flight = time.monotonic(), load.in_flight
            self._stack.kill(name)
            self.killed.append((round(begun - self._begun, 2), name))
            self._away[name] = asyncio.create_task(self._restarted(name))
            await asyncio.shield(self._away[name])
            self.servers_killed[name] = {"away_s": round(time.monotonic() - begun, 2), "in_flight": in_flight}
            enough = load.done + max(1, self._form.jobs // 50)
            while load.done < enough and not end():
                await asyncio.sleep(0.1)

    async def _restarted(self, name: str) -> None:
        await asyncio.sleep(DOWN_S)
        await asyncio.to_thread(self._stack.restart, name)


def in_the_middle(running: Sequence[Job], pids: Mapping[str, int]) -> str | None:
    """The replica, of these process ids, that draws a job with a checkpoint and half of its steps to go."""
    for job in running:
        if 0 < job.checkpoint_step <= job.request.steps // 2:
            for name, pid in pids.items():
                if job.worker.endswith(f"-{pid}"):
                    return name
    return None
