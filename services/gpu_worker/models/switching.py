"""The worker's side of the global monitor: report what this worker runs, and switch its model as assigned, after
draining."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from statistics import median

import torch

from services.gpu_worker.engine.family import Family
from services.gpu_worker.jobs.lane_consumer import LaneConsumer
from services.gpu_worker.models.measuring import measure
from services.gpu_worker.models.model_assignment import ModelAssignment, lanes, preferred, used
from services.gpu_worker.models.residency import Resident
from shared.bus import Bus, Subscription
from shared.domain.errors import AfterimageError
from shared.domain.messages import Message, WorkerReported, WorkersAssigned, lane_of, silence_s
from shared.models import of_images
from shared.runtime.telemetry import log

KEPT_STEPS = 64
"""Step times kept per model and batch size; reports carry their median."""
FIRST_STEPS = 3
"""Steps of a model after which its times are reported at once."""
RETRY_S = 1.0

Serve = Callable[[Mapping[str, Family]], Awaitable[None]]
"""Set the models that the engine may run, and wait until it has released all others."""


class Assignment:
    """The worker's assignment. It begins with the large model and every lane that no other worker is known to consume.

    While the monitor is away the worker keeps its model, and a newly started worker begins as above. The other workers'
    models then count as unknown, so that no lane waits for a worker that is gone (docs/architecture.md, Services).
    """

    def __init__(
        self,
        worker: str,
        bus: Bus,
        models: Resident,
        taking: LaneConsumer,
        clips: LaneConsumer,
        *,
        max_rows: int,
        report_s: float,
        mode: str,
    ) -> None:
        """taking, clips: the consumers of the lanes of images and of clips."""
        self.worker, self._bus, self._models, self._taking, self._clips = worker, bus, models, taking, clips
        self._serve: Serve | None = None
        self._max_rows, self._report_s = max_rows, report_s
        self.served: tuple[str, ...] = tuple(of_images(models.cards))
        self.videos = tuple(name for name in models.cards if name not in self.served)
        """Names of the video model, which no monitor assigns: it runs wherever it is loaded."""
        self.duty = self._wanted = ModelAssignment(self.served[0], frozenset({self.served[0]}), mode)
        self.step_s: dict[tuple[str, int], deque[float]] = defaultdict(lambda: deque(maxlen=KEPT_STEPS))
        """Seconds of a step by (model, rows)."""
        self.pixels: dict[str, int] = {}
        """Pixels of each model's requests in one step that the memory holds, where they are known."""
        self._cannot: set[str] = set()
        self._unkept: set[str] = set()
        """Video models that have no room beside the loaded models."""
        self._news, self._measured_first = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._subscription: Subscription | None = None

    async def load(self) -> Family:
        """Load every served model, the large one so that it is loaded when this returns; measure those of images.

        Raises what loading the large model raises. The worker continues without a small model that cannot be loaded,
        and without a video model that cannot be loaded beside the large one.
        """
        for name in reversed((*self.served[1:], *self.videos)):
            await self._loaded(name)
        family = await self._models.get(self.served[0])
        if len(self.served) > 1:
            await self._measured(family)
        await self._keep_videos()
        self._kind = kind_of(family.device)
        return family

    async def begin(self, serve: Serve) -> None:
        """Consume lanes, report to the monitor, and follow its assignments until `end`."""
        self._serve = serve
        self._subscription = await self._bus.subscribe([WorkersAssigned], self.hear)
        await self._taking.begin(self._lanes(self.duty))
        await self._consume_clips()
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._keep_reporting())]

    async def end(self) -> None:
        """Stop following assignments; the last report says that the worker leaves."""
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
        """Families that this worker runs: its own, and loaded ones assigned to no worker; the large one first, the
        video model last."""
        here = self._models.families
        return {name: here[name] for name in (*used(self.duty, self.served, here), *self.videos) if name in here}

    @property
    def preferred(self) -> tuple[str, ...]:
        """Models of `families` to prefer for plans that several models may run."""
        return preferred(self.duty, self.served, self._models.families)

    def count(self, model: str, rows: int, seconds: float) -> None:
        """Record the seconds of a step that ran. A model's first FIRST_STEPS are reported at once: until then gateways
        predict from its profile, which may be of another machine."""
        self.step_s[model, rows].append(seconds)
        if sum(len(each) for (name, _), each in self.step_s.items() if name == model) == FIRST_STEPS:
            self._measured_first.set()

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
            except Exception as error:  # for example a bus that is away: the old lanes stay until it is back
                log("gpu_worker").warning("assignment not applied; trying again", error=repr(error))
                await asyncio.sleep(RETRY_S)
                self._news.set()

    async def _heard(self) -> None:
        """Wait for an assignment. The monitor publishes as often as workers report. When it has missed reports, other
        workers may be gone unnoticed: then no model is known to run elsewhere."""
        try:
            async with asyncio.timeout(silence_s(self._report_s)):
                await self._news.wait()
        except TimeoutError:
            self._wanted = self.duty.alone()
            if self._wanted != self.duty:
                log("gpu_worker").warning("monitor silent; consuming every lane this worker can", model=self.duty.model)

    async def _change(self, duty: ModelAssignment) -> None:
        before = self.duty.model
        if duty.model != before and not await self._switched(duty.model):
            duty = duty.with_model(before)
        self.duty = duty
        if not self._taking.going_on or self._lanes(duty) != self._taking.lanes:
            await self._taking.begin(self._lanes(duty))
        await self._consume_clips()
        if duty.model != before:
            log("gpu_worker").info("model changed", before=before, after=duty.model)
        if duty.model != before or duty.model != self._wanted.model:
            await self._report()

    async def _switched(self, name: str) -> bool:
        """Switch to this model and return whether that succeeded; no task is in hand then. The worker takes no new task
        and finishes running ones with the old model. Where memory allows, the new model is loaded before that, and the
        old one stays loaded. Else the clips finish first, while images are still taken."""
        if name not in self.served or name in self._cannot:
            return False
        if self._models.fits(name) and not await self._loaded(name):
            return False
        if unloads := name not in self._models.families:
            await self._clips.pause()
            await self._clips.finished()
        await self._taking.pause()
        await self._taking.finished()
        if unloads:
            await self._tell_engine({})  # the engine must release models that are unloaded
            await self._loaded(name)
            await self._models.get(name if name not in self._cannot else self.duty.model)
            await self._keep_videos()
        await self._tell_engine(self._models.families)
        return name not in self._cannot

    async def _keep_videos(self) -> None:
        """Load the video model where it fits beside the loaded models; else this worker takes no clips for now."""
        for name in self.videos:
            if name in self._cannot:
                continue
            if self._models.fits(name) and await self._loaded(name):
                self._unkept.discard(name)
                continue
            self._unkept.add(name)
            log("gpu_worker").error(
                "model not kept", model=name, rule="resident_bytes must hold it and the models of images in use"
            )

    async def _consume_clips(self) -> None:
        """Consume the lane of a loaded video model, unless this worker does already."""
        lanes = tuple(lane_of(name) for name in self.videos if name in self._models.families)
        if lanes and not self._clips.going_on:
            await self._clips.begin(lanes)

    def _lanes(self, duty: ModelAssignment) -> tuple[str, ...]:
        return lanes(duty, self.served, self._models.families)

    async def _loaded(self, name: str) -> bool:
        """Load the model and return whether it is loaded; a failure is reported to the monitor as `cannot`."""
        try:
            family = await self._models.get(name)
            if name in self.served and not any(model == name for model, _ in self.step_s):
                await self._measured(family)
        except Exception as error:
            log("gpu_worker").error("model not loaded", model=name, error=repr(error))
            self._cannot.add(name)
            return False
        await self._tell_engine(self._models.families)
        return True

    async def _tell_engine(self, families: Mapping[str, Family]) -> None:
        if self._serve is not None:  # set once the engine runs
            await self._serve(families)

    async def _measured(self, family: Family) -> None:
        found = await asyncio.to_thread(measure, family, (1, self._max_rows))
        for rows, seconds in found.items():
            self.count(family.card.name, rows, seconds)

    # ---- reporting

    async def _keep_reporting(self) -> None:
        while True:
            await self._report()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._report_s):
                    await self._measured_first.wait()
            self._measured_first.clear()

    async def _report(self, *, leaving: bool = False) -> None:
        step_s = tuple((model, rows, median(seconds)) for (model, rows), seconds in sorted(self.step_s.items()))
        report = WorkerReported(
            worker=self.worker,
            kind=self._kind,
            model=self.duty.model,
            rows=len(self._taking.in_hand),
            max_rows=self._max_rows,
            step_s=step_s,
            cannot=tuple(sorted(self._cannot | self._unkept)),
            leaving=leaving,
            clips=len(self._clips.in_hand),
            serves=(*self.served, *self.videos),
            pixels=tuple(sorted(self.pixels.items())),
        )
        try:
            await self._bus.publish(report)
        except AfterimageError as error:  # the next report follows soon
            log("gpu_worker").warning("worker report not published", error=str(error))


def kind_of(device: torch.device) -> str:
    """Return a name that equally fast workers share: the accelerator's name, or the thread limit of a step."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{device.type}, {torch.get_num_threads()} threads"
