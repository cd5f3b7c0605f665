"""Live events for the console: one subscription of the gateway feeds all tabs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from cachetools import FIFOCache

from protos import global_monitor_pb2
from protos.global_monitor_pb2_grpc import GlobalMonitorServiceStub
from services.gateway.console.job_json import summary
from services.gateway.console.operations import as_json
from services.gateway.pending_calls import Calls
from shared.bus import Subscription
from shared.domain.errors import AfterimageError
from shared.domain.messages import JobCancelled, JobFailed, JobQueued, JobSucceeded, Message, Progress
from shared.runtime import rpc
from shared.service import Context

TICK_S = 0.2
"""Seconds in which the events of a job are gathered before its row is read."""
BATCH, MOST_CHANGED = 50, 1000
"""Rows read per tick; changed jobs that wait for it. With more, tabs are told to read their lists again."""
MOST_EVENTS = 1000
"""Events that one tab has not read; with more, it is told to read its lists again."""
RETRY_S = 2.0
"""Seconds between two tries to reach the global monitor."""
_KINDS: tuple[type[Message], ...] = (JobQueued, Progress, JobSucceeded, JobFailed, JobCancelled)
Owner = tuple[str, str]
"""Tenant and stored user of a job."""
Sees = Callable[[str, str], bool]
"""Takes a job's tenant and stored user, and returns whether the tab's caller may see it."""


class Tab:
    """The events that one tab has not read; of each job only the latest."""

    def __init__(self, sees: Sees, *, operator: bool) -> None:
        self.sees, self.operator = sees, operator
        self._events: dict[tuple[str, str], dict[str, Any]] = {}
        self._news = asyncio.Event()

    def put(self, kind: str, key: str, event: dict[str, Any]) -> None:
        if len(self._events) >= MOST_EVENTS:  # of a tab that reads nothing
            self._events = {("reload", ""): {}}
        self._events[kind, key] = event
        self.wake()

    def wake(self) -> None:
        self._news.set()

    async def next(self, timeout_s: float) -> list[tuple[str, dict[str, Any]]]:
        """Return kind and data of the events since the last call; an empty list after `timeout_s` without one, and
        when the gateway begins to drain."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        self._news.clear()
        events, self._events = self._events, {}
        return [(kind, event) for (kind, _), event in events.items()]


class Live:
    """Feeds the open tabs. Without tabs it subscribes to nothing and reads nothing."""

    def __init__(self, context: Context, calls: Calls) -> None:
        self._context, self._calls = context, calls
        self._tabs: set[Tab] = set()
        self._opening = asyncio.Lock()
        self._arranging: set[asyncio.Task[None]] = set()
        self._subscription: Subscription | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed: dict[str, None] = {}
        self._news = asyncio.Event()
        self._owners: FIFOCache[str, Owner] = FIFOCache(4096)
        self._audiences: FIFOCache[Owner, list[Tab]] = FIFOCache(1024)
        calls.fanout.on_drain.append(self._wake)
        self.fleet: dict[str, Any] | None = None
        """The global monitor's last answer; None: no operator looks."""

    @property
    def draining(self) -> bool:
        return self._calls.fanout.draining

    def _wake(self) -> None:
        for tab in self._tabs:
            tab.wake()

    @contextlib.asynccontextmanager
    async def tab(self, sees: Sees, *, operator: bool) -> AsyncIterator[Tab]:
        """Yield a tab that gets the events of the jobs that it sees, and of the fleet for an operator."""
        tab = Tab(sees, operator=operator)
        self._tabs.add(tab)
        self._audiences.clear()
        try:
            await self._arrange()
            if operator and self.fleet is not None:
                tab.put("fleet", "", self.fleet)
            yield tab
        finally:
            self._tabs.discard(tab)
            self._audiences.clear()
            await self._arrange()

    async def _arrange(self) -> None:
        """Begin or end what the open tabs need, in a separate task: a gone tab's own is cancelled at each await."""
        task = asyncio.create_task(self._arranged())
        self._arranging.add(task)
        task.add_done_callback(self._arranging.discard)
        await asyncio.shield(task)

    async def _arranged(self) -> None:
        """Begin or end the subscription and the tasks, as the open tabs need."""
        async with self._opening:
            if self._tabs and self._subscription is None:
                self._subscription = await self._context.backends.bus.subscribe(_KINDS, self._heard)
            elif not self._tabs and self._subscription is not None:
                subscription, self._subscription = self._subscription, None
                await subscription.close()
            await self._run("rows", self._read_rows, wanted=bool(self._tabs))
            await self._run("fleet", self._follow_fleet, wanted=any(tab.operator for tab in self._tabs))

    async def _run(self, name: str, work: Callable[[], Any], *, wanted: bool) -> None:
        if wanted and name not in self._tasks:
            self._tasks[name] = asyncio.create_task(work())
        elif not wanted and name in self._tasks:
            task = self._tasks.pop(name)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # ---- jobs ----

    async def _heard(self, fact: Message) -> None:
        job_id = str(getattr(fact, "job_id", ""))
        owner = self._owners.get(job_id)
        if isinstance(fact, Progress) and owner is not None:
            step = {"id": job_id, "step": fact.step, "steps": fact.steps, "preview": fact.preview}
            for tab in self._audience(owner):
                tab.put("progress", job_id, step)
            return
        if owner is not None and not self._audience(owner):
            return
        if len(self._changed) >= MOST_CHANGED:
            self._changed.clear()
            for tab in self._tabs:
                tab.put("reload", "", {})
        self._changed[job_id] = None
        self._news.set()

    async def _read_rows(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            await asyncio.sleep(TICK_S)
            batch = list(self._changed)[:BATCH]
            for job_id in batch:
                del self._changed[job_id]
                with contextlib.suppress(AfterimageError):  # the tab shows the job's last known state
                    await self._read_row(job_id)
            if self._changed:
                self._news.set()

    async def _read_row(self, job_id: str) -> None:
        job = await self._context.backends.catalog.jobs.get(job_id)
        owner = self._owners[job_id] = job.request.tenant, job.request.user
        if audience := self._audience(owner):
            row = summary(job)
            for tab in audience:
                tab.put("job", job_id, row)

    def _audience(self, owner: Owner) -> list[Tab]:
        """Return the open tabs that see jobs of this owner."""
        if owner not in self._audiences:
            self._audiences[owner] = [tab for tab in self._tabs if tab.sees(*owner)]
        return self._audiences[owner]

    # ---- fleet ----

    async def _follow_fleet(self) -> None:
        """Pass on the global monitor's answers, or why there is none."""
        try:
            while True:
                try:
                    stub = self._context.stub(GlobalMonitorServiceStub, "global_monitor")
                    async for answer in stub.Allocation(global_monitor_pb2.AllocationRequest()):
                        self._tell_fleet(as_json(answer))
                    self._tell_fleet({"away": "the global monitor is shutting down"})
                except grpc.RpcError as error:
                    self._tell_fleet({"away": rpc.from_rpc_error(error).outside})
                except AfterimageError as error:
                    self._tell_fleet({"away": error.outside})
                except grpc.aio.UsageError:  # the channel is closed: this process ends
                    return
                except asyncio.CancelledError:  # or it was closed for one with a renewed certificate
                    if (task := asyncio.current_task()) is None or task.cancelling():
                        raise
                await asyncio.sleep(RETRY_S)
        finally:
            self.fleet = None

    def _tell_fleet(self, answer: dict[str, Any]) -> None:
        self.fleet = answer
        for tab in self._tabs:
            if tab.operator:
                tab.put("fleet", "", answer)
