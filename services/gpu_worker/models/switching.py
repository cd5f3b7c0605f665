"""Follows the global monitor: reports what this worker runs, and changes its model when it is told to, by draining."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping
from statistics import median

import torch

from services.gpu_worker.engine.family import Family
from services.gpu_worker.jobs.lane_consumer import LaneConsumer
from services.gpu_worker.models.measuring import measure
from services.gpu_worker.models.model_assignment import ModelAssignment, lanes, preferred, used
from services.gpu_worker.models.residency import Resident
from shared.bus import Bus, Subscription
from shared.domain.errors import AfterimageError
from shared.domain.messages import Message, WorkerReported, WorkersAssigned, silence_s
from shared.runtime.telemetry import log

KEPT_STEPS = 64
"""Of each model and batch size: what is reported is the median of the last ones."""
RETRY_S = 1.0

Serve = Callable[[Mapping[str, Family]], Awaitable[None]]
"""Tells the engine which models it may be asked for, and waits until it has let go of others."""


class Assignment:
    """Begins with the large model and every lane that nobody else is known to take from.

    When the monitor is away its model stands, and a worker that starts meanwhile begins as said; what others run is
    forgotten, so that no lane is left to workers that are no more (design §3: nothing is ever stranded).
    """

    def __init__(
        self,
        worker: str,
        bus: Bus,
        models: Resident,
        taking: LaneConsumer,
        *,
        max_rows: int,
        report_s: float,
        mode: str,
    ) -> None:
        self.worker, self._bus, self._models, self._taking = worker, bus, models, taking
        self._serve: Serve | None = None
        self._max_rows, self._report_s = max_rows, report_s
        self.served: tuple[str, ...] = tuple(models.cards)
        self.duty = self._wanted = ModelAssignment(self.served[0], frozenset({self.served[0]}), mode)
        self.step_s: dict[tuple[str, int], deque[float]] = defaultdict(lambda: deque(maxlen=KEPT_STEPS))
        """Seconds of a step by (model, rows)."""
        self._cannot: set[str] = set()
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._subscription: Subscription | None = None

    async def load(self) -> Family:
        """Loads and measures every model that is served, the large one last: it is here when this returns.

        Raises what loading the large model raises; without a small one the worker goes on.
        """
        for name in reversed(self.served[1:]):
            await self._loaded(name)
        family = await self._models.get(self.served[0])
        if len(self.served) > 1:
            await self._measured(family)
        self._kind = kind_of(family.device)
        return family

    async def begin(self, serve: Serve) -> None:
        """Takes tasks, reports, and follows from now on."""
        self._serve = serve
        self._subscription = await self._bus.subscribe([WorkersAssigned], self.hear)
        await self._taking.begin(self._lanes(self.duty))
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._keep_reporting())]

    async def end(self) -> None:
        """Follows nobody any more; the last word is that it leaves."""
        if self._subscription is None:
            return
        subscription, self._subscription = self._subscription, None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await subscription.close()
        await self._report(leaving=True)

    @property
    def families(self) -> dict[str, Family]:
        """The models that this worker draws with: its own, and those loaded here that nobody runs; large first."""
        here = self._models.families
        return {name: here[name] for name in used(self.duty, self.served, here)}

    @property
    def preferred(self) -> tuple[str, ...]:
        """Those of them that draw what several may."""
        return preferred(self.duty, self.served, self._models.families)

    def count(self, model: str, rows: int, seconds: float) -> None:
        """A step that ran."""
        self.step_s[model, rows].append(seconds)

    # ---- following

    async def hear(self, fact: Message) -> None:
        if isinstance(fact, WorkersAssigned):
            self._wanted = self.duty.after(fact, self.worker)
            self._news.set()

    async def _follow(self) -> None:
        while True:
            await self._heard()
            self._news.clear()
            try:
                await self._change(self._wanted)
            except Exception as error:  # a bus that is away, say: what it takes from stays until it is back
                log("gpu_worker").warning("assignment not followed yet", error=repr(error))
                await asyncio.sleep(RETRY_S)
                self._news.set()

    async def _heard(self) -> None:
        """Wait for an assignment. The monitor publishes as often as workers report: when it has missed reports, other
        workers may be gone unnoticed, and no model is known to run elsewhere."""
        try:
            async with asyncio.timeout(silence_s(self._report_s)):
                await self._news.wait()
        except TimeoutError:
            self._wanted = self.duty.alone()
            if self._wanted != self.duty:
                log("gpu_worker").warning("monitor not heard; taking from every lane it can", model=self.duty.model)

    async def _change(self, duty: ModelAssignment) -> None:
        before = self.duty.model
        if duty.model != before and not await self._switched(duty.model):
            duty = duty.with_model(before)
        self.duty = duty
        if not self._taking.going_on or self._lanes(duty) != self._taking.lanes:
            await self._taking.begin(self._lanes(duty))
        if duty.model != before:
            log("gpu_worker").info("model changed", before=before, after=duty.model)
        if duty.model != before or duty.model != self._wanted.model:
            await self._report()

    async def _switched(self, name: str) -> bool:
        """Whether the worker has this model now, and nothing in hand: it takes nothing new, and finishes what runs with
        the old one. Where memory allows the new one is loaded before that, and the old one stays."""
        if name not in self.served or name in self._cannot:
            return False
        if self._models.fits(name) and not await self._loaded(name):
            return False
        await self._taking.pause()
        await self._taking.finished()
        if name not in self._models.families:
            await self._tell_engine({})  # which must not keep what has to go
            await self._loaded(name)
            await self._models.get(name if name not in self._cannot else self.duty.model)
        await self._tell_engine(self._models.families)
        return name not in self._cannot

    def _lanes(self, duty: ModelAssignment) -> tuple[str, ...]:
        return lanes(duty, self.served, self._models.families)

    async def _loaded(self, name: str) -> bool:
        """Whether it is here now; one that cannot be loaded is reported as such."""
        try:
            family = await self._models.get(name)
            if not any(model == name for model, _ in self.step_s):
                await self._measured(family)
        except Exception as error:
            log("gpu_worker").error("model not loaded", model=name, error=repr(error))
            self._cannot.add(name)
            return False
        await self._tell_engine(self._models.families)
        return True

    async def _tell_engine(self, families: Mapping[str, Family]) -> None:
        if self._serve is not None:  # there is one
            await self._serve(families)

    async def _measured(self, family: Family) -> None:
        found = await asyncio.to_thread(measure, family, (1, self._max_rows))
        for rows, seconds in found.items():
            self.count(family.card.name, rows, seconds)

    # ---- reporting

    async def _keep_reporting(self) -> None:
        while True:
            await self._report()
            await asyncio.sleep(self._report_s)

    async def _report(self, *, leaving: bool = False) -> None:
        step_s = tuple((model, rows, median(seconds)) for (model, rows), seconds in sorted(self.step_s.items()))
        report = WorkerReported(
            worker=self.worker,
            kind=self._kind,
            model=self.duty.model,
            rows=len(self._taking.in_hand),
            max_rows=self._max_rows,
            step_s=step_s,
            cannot=tuple(sorted(self._cannot)),
            leaving=leaving,
        )
        try:
            await self._bus.publish(report)
        except AfterimageError as error:  # the next one is soon
            log("gpu_worker").warning("not reported", error=str(error))


def kind_of(device: torch.device) -> str:
    """What workers are equally fast on: the accelerator's name, or how many threads a step may have."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{device.type}, {torch.get_num_threads()} threads"
