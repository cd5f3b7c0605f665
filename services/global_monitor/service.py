"""The global monitor's handlers: receive demand and worker reports, decide once per period which worker runs which
model, publish assignment and metrics."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import grpc

from protos import global_monitor_pb2 as pb
from protos import global_monitor_pb2_grpc as pb_grpc
from services.global_monitor.allocation.pid import Gains
from services.global_monitor.decision import Decision, Rules
from services.global_monitor.demand import GENERATION
from services.global_monitor.figures import show
from services.global_monitor.monitor import GlobalMonitor
from services.global_monitor.responses import allocation, change
from shared.bus import Subscription
from shared.domain.errors import AfterimageError
from shared.domain.messages import (
    JobCancelled,
    JobFailed,
    JobQueued,
    JobSucceeded,
    Message,
    WorkerReported,
    WorkersAssigned,
    lane_of,
    silence_s,
)
from shared.models.card_lookup import of_images, served_cards
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS, log
from shared.service import Context
from shared.service.callers import MayCall
from shared.service.leadership import Leadership

LOOKS = 5
"""Checks for workers that came or went, per report interval of a worker."""
LEASE_S = 15.0
"""Seconds without a renewal after which another replica takes over from a monitor."""
HISTORY = 50


class GlobalMonitorService(pb_grpc.GlobalMonitorServiceServicer):
    """The global monitor. All replicas receive events; the replica that holds the catalog's lease decides."""

    name: ClassVar[str] = "global_monitor"
    callers: ClassVar[MayCall] = {"gateway": {"Allocation"}}
    ports: ClassVar[frozenset[str]] = frozenset({"catalog", "bus"})
    needs: ClassVar[frozenset[str]] = frozenset({"bus"})

    async def start(self, context: Context) -> None:
        self._context, settings = context, context.settings
        # a catalog that hangs must delay neither the next decision nor a planned stop
        self._catalog = context.backends.catalog.within(settings.catalog_timeout_s)
        self._leadership = Leadership(self.name, self._catalog, context.clock, LEASE_S)
        self._monitor = GlobalMonitor(rules_of(settings), context.clock.monotonic())
        self._leads = self._leadership.held
        self._blind = self._unheard = False
        self._renewed = self._next = self._told = self._counted = float("-inf")
        self._deadlines = 0, 0
        """Jobs with a deadline that ended within the demand window, and those that met it."""
        self._shown: Decision | None = None
        self._history: deque[pb.Change] = deque(maxlen=HISTORY)
        self._news: set[asyncio.Event] = set()
        self._draining = False
        facts: list[type[Message]] = [
            JobQueued, JobSucceeded, JobFailed, JobCancelled, WorkerReported, WorkersAssigned
        ]  # fmt: skip
        self._subscription: Subscription = await context.backends.bus.subscribe(facts, self.handle, on_gap=self._missed)
        self._next = context.clock.monotonic() + settings.monitor_period_s
        self._looking = asyncio.create_task(self._look())

    def register(self, server: grpc.aio.Server) -> str:
        pb_grpc.add_GlobalMonitorServiceServicer_to_server(self, server)
        return pb.DESCRIPTOR.services_by_name["GlobalMonitorService"].full_name

    async def drain(self) -> None:
        """Stop deciding; the last assignment stays in force."""
        self._draining = True
        self._wake()
        self._looking.cancel()
        await asyncio.gather(self._looking, return_exceptions=True)
        await self._subscription.close()
        await self._leadership.give_up()

    async def stop(self) -> None:
        return

    # ---- gRPC ----

    async def Allocation(self, request: pb.AllocationRequest, context: Any) -> AsyncIterator[pb.AllocationResponse]:
        news = asyncio.Event()
        news.set()
        self._news.add(news)
        try:
            while not self._draining:
                await news.wait()
                news.clear()
                yield self._answer()
        finally:
            self._news.discard(news)

    def _answer(self) -> pb.AllocationResponse:
        view = self._monitor.view(self._context.clock.monotonic())
        return allocation(view, self._monitor.rules, self._history, self._deadlines, leads=self._leads)

    def _wake(self) -> None:
        for news in self._news:
            news.set()

    # ---- events ----

    async def handle(self, fact: Message) -> None:
        if isinstance(fact, WorkersAssigned):
            if not self._leads:  # then another replica decided
                self._monitor.adopt(fact)
            return
        self._monitor.hear(fact, self._context.clock.monotonic())

    async def _missed(self) -> None:
        self._monitor.missed()

    # ---- deciding ----

    async def _look(self) -> None:
        """Check the workers often; decide when the period is over, or at once when a worker came or went."""
        while True:
            await asyncio.sleep(self._settings.report_s / LOOKS)
            try:
                await self._renew()
                await self._looked(self._context.clock.monotonic())
            except Exception as error:  # the last assignment stays in force, and the next check is soon
                log(self.name).error("no decision", error=repr(error), exc_info=error)

    async def _looked(self, at: float) -> None:
        self._monitor.look(at)
        if self._leads and (self._monitor.urgent or at >= self._next):
            self._next = at + self._settings.monitor_period_s
            self._decided(self._monitor.decide(at))
        if self._leads and self._monitor.rules.smalls and at - self._counted >= self._settings.report_s:
            self._counted = at
            await self._take_turns(at)
        if at - self._told >= self._settings.report_s:
            self._told = at
            if self._leads:  # before workers follow: the page is never behind them
                show(self._monitor.view(at), self._monitor.rules)
            await self._tell()
            await self._count_deadlines()
            self._wake()

    async def _take_turns(self, at: float) -> None:
        """Send workers on turns by the waiting times in the catalog, which are complete even if this monitor missed
        events."""
        rules = self._monitor.rules
        lanes = {lane_of(model): model for model in (rules.large, *rules.smalls)}
        try:
            waits = await self._catalog.jobs.waits(tuple(lanes))
        except AfterimageError as error:
            if not self._blind:
                log(self.name).warning("lanes not counted", error=str(error))
            self._blind = True
            return
        self._blind = False
        decision = self._monitor.turn({lanes[lane]: waited_s for lane, waited_s in waits.items()}, at)
        if decision is not None:
            self._decided(decision)

    def _decided(self, decision: Decision) -> None:
        self._told = float("-inf")
        METRICS.monitor_switches.inc(len(decision.switches))
        METRICS.monitor_kept.inc(bool(decision.kept))
        before, self._shown = self._shown, decision
        changed = before is None or (before.models, before.mode) != (decision.models, decision.mode)
        if changed and decision.models:
            self._history.append(change(decision, self._context.clock.now()))
            log(self.name).info(
                "assigned", mode=decision.mode, switches=len(decision.switches), why=decision.why,
                **{f"workers_{model}": decision.count(model) for model in sorted(set(decision.models.values()))},
            )  # fmt: skip

    async def _tell(self) -> None:
        """Publish the assignment in every report interval: a worker that is new, or missed it, gets the next one."""
        models = self._monitor.models
        if not (self._leads and models):
            return
        try:
            await self._context.backends.bus.publish(WorkersAssigned(tuple(sorted(models.items())), self._monitor.mode))
        except AfterimageError as error:  # the last assignment stays in force
            if not self._unheard:
                log(self.name).warning("assignment not published", error=str(error))
            self._unheard = True
        else:
            self._unheard = False

    async def _count_deadlines(self) -> None:
        try:
            self._deadlines = await self._catalog.jobs.deadlines(self._settings.monitor_window_s)
        except AfterimageError:  # the last numbers stay; `_take_turns` logs that the catalog is away
            return

    async def _renew(self) -> None:
        if self._leadership.alone:
            return
        at = self._context.clock.monotonic()
        if at - self._renewed >= self._leadership.every_s:
            self._renewed = at
            await self._leadership.renew()
        if self._leadership.held != self._leads:
            self._leads = self._leadership.held
            log(self.name).info("leads" if self._leads else "stands by")

    @property
    def _settings(self) -> Settings:
        return self._context.settings


def rules_of(settings: Settings) -> Rules:
    cards = of_images(served_cards(settings))
    large, *smalls = cards
    return Rules(
        large=large,
        smalls=tuple(smalls),
        mode=settings.monitor_mode,
        period_s=settings.monitor_period_s,
        window_s=settings.monitor_window_s,
        gains=Gains(*settings.monitor_gains),
        band=settings.monitor_hysteresis,
        headroom=settings.monitor_headroom,
        catch_up_s=settings.monitor_catch_up_s,
        turn_s=settings.monitor_turn_s,
        lapse_s=silence_s(settings.report_s),
        generations={
            name: GENERATION * card.default_steps / cards[large].default_steps for name, card in cards.items()
        },
    )
