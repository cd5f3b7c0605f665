"""The engine: step-level continuous batching; every step decides, runs and folds (docs/architecture.md, Engine)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np
import torch

from services.gpu_worker.engine.events import (
    Advanced,
    BatchRan,
    Checkpointed,
    Event,
    Finished,
    Joined,
    LatentCaptured,
    Left,
)
from services.gpu_worker.engine.family import Family
from services.gpu_worker.engine.row_start import make_row, off_device
from services.gpu_worker.engine.rows import Pixels, Row, Stepped, Task
from services.gpu_worker.engine.scheduler import Decision
from services.gpu_worker.engine.schedulers import ByPriority, Scheduler
from services.gpu_worker.engine.threads import StepThreads
from shared.domain.errors import CancelledError, DeadlineError, ModelError
from shared.runtime.telemetry import log

Outcome = list[tuple[Row, Stepped | Exception]]


class Engine:
    """A batch of at most `max_rows` rows of any of `families` (`scheduler` says how frames and pixels count). Not
    thread-safe: one thread owns the engine.

    Requests at different timesteps, with different guidance, sizes and seeds, hits and misses, join and leave between
    steps. A row's result does not depend on the other rows (docs/architecture.md, Equality): equal within 1e-4, and
    bit-identical where the families were loaded with `batch_invariant`.

    `tell_every_s`: seconds between two Advanced events of one row, so that fast steps do not wake the event loop.
    `threads`: finds the fastest thread count for each amount of work; None keeps torch's setting.
    `scheduler`: decides who joins and who leaves before each step.
    """

    def __init__(
        self,
        families: Mapping[str, Family],
        *,
        max_rows: int = 8,
        max_pixels: float = math.inf,
        tell_every_s: float = 0.2,
        clock: Callable[[], float] = time.monotonic,
        threads: StepThreads | None = None,
        scheduler: Scheduler | None = None,
    ) -> None:
        self.families = dict(families)
        self._threads = threads
        self._scheduler = scheduler or ByPriority()
        self.max_rows, self._max_pixels = max_rows, max_pixels
        self._clock = clock
        self._tell_every_s = tell_every_s
        self._waiting: dict[str, Task] = {}
        self._running: dict[str, Row] = {}
        self._aside: dict[str, Row] = {}
        """Rows that the scheduler set aside: they keep their state and run no step."""
        self._cancelled: set[str] = set()
        self._spent: dict[str, float] = {}
        """Seconds of steps by model in the batch, beyond those of the model with the fewest."""
        self._arrived = 0

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._running and not self._aside

    @property
    def rows(self) -> int:
        return len(self._running)

    def submit(self, task: Task) -> None:
        """Queue a task. Raises ModelError when its id is already in the engine."""
        if self._holds(task.id):
            raise ModelError(f"task {task.id!r} is in the engine already")
        self._arrived += 1
        self._waiting[task.id] = replace(task, arrived=self._arrived)

    def cancel(self, task_id: str) -> None:
        """Remove the task before the next step. An unknown id is ignored: the task may just have finished."""
        if self._holds(task_id):
            self._cancelled.add(task_id)

    def preview(self, task_id: str) -> None:
        """Add previews to the task's events from its next step on. An unknown id is ignored."""
        if task_id in self._waiting:
            self._waiting[task_id] = replace(self._waiting[task_id], preview=True)
        elif (row := self._running.get(task_id) or self._aside.get(task_id)) is not None:
            row.task = replace(row.task, preview=True)

    def abandon(self, error: Exception) -> list[Event]:
        """Remove every task because the engine itself failed."""
        return [self._leave(task_id, error) for task_id in [*self._waiting, *self._running, *self._aside]]

    def step(self) -> list[Event]:
        """Run one denoising step for the rows of each model whose turn it is; return the events."""
        # the engine's thread stays in inference mode, because entering it costs 5 µs
        if not torch.is_inference_mode_enabled():
            with torch.inference_mode():
                return self.step()
        decision = self._decide()
        changed, outcome = self._run(decision)
        return [*changed, *self._fold(outcome)]

    # decide

    def _decide(self) -> Decision:
        waiting, running, cancelled = [*self._waiting.values()], [*self._running.values()], frozenset(self._cancelled)
        limits = self.max_rows, self._max_pixels
        aside = [*self._aside.values()]
        return self._scheduler.decide(waiting, running, cancelled, self._clock(), *limits, self.families, aside)

    def _holds(self, task_id: str) -> bool:
        return task_id in self._waiting or task_id in self._running or task_id in self._aside

    # run

    def _run(self, decision: Decision) -> tuple[list[Event], Outcome]:
        events = [self._leave(task_id, CancelledError("cancelled")) for task_id in decision.cancel]
        events += [self._leave(task_id, DeadlineError("the deadline passed")) for task_id in decision.late]
        for task_id in decision.aside:
            self._aside[task_id] = self._running.pop(task_id)
        for task_id in decision.resume:
            self._running[task_id] = self._aside.pop(task_id)
        events += [self._join(self._waiting.pop(task_id)) for task_id in decision.join]
        outcome: Outcome = []
        for name, rows in self._rows_in_turn().items():
            stepped, seconds = self._timed(name, rows)
            self._spent[name] += seconds
            outcome += stepped
            events.append(BatchRan(name, len(rows), seconds))
        return events, outcome

    def _timed(self, name: str, rows: list[Row]) -> tuple[Outcome, float]:
        elements = sum(row.latent.numel() for row in rows)
        if self._threads:
            self._threads.before(name, elements)
        begun = self._clock()
        family = self.families[name]
        outcome = self._forward(family, rows)
        if family.device.type == "cuda":  # CUDA kernels run asynchronously; wait for them before reading the clock
            torch.cuda.synchronize(family.device)
        seconds = self._clock() - begun
        if self._threads:
            self._threads.after(name, elements, seconds)
        self._scheduler.took(name, rows, seconds)
        return outcome, seconds

    def _leave(self, task_id: str, error: Exception) -> Event:
        self._waiting.pop(task_id, None)
        row = self._running.pop(task_id, None) or self._aside.pop(task_id, None)
        self._cancelled.discard(task_id)
        return Left(task_id, error, row.done - row.started if row else 0)

    def _join(self, task: Task) -> Event:
        begun = self._clock()
        try:
            row = self._row(task)
        except Exception as error:  # a task that cannot start fails alone
            return Left(task.id, error)
        row.joined_at = row.told_at = row.saved_at = self._clock()
        self._running[task.id] = row
        return Joined(task.id, row.done, row.joined_at, row.joined_at - begun, row.warnings)

    def _row(self, task: Task) -> Row:
        if task.model not in self.families:
            raise ModelError(f"model {task.model!r} is not loaded in this worker (loaded: {', '.join(self.families)})")
        return make_row(self.families[task.model], task)

    def _rows_in_turn(self) -> dict[str, list[Row]]:
        """Return the rows of the models whose steps took the fewest seconds since the models share the batch.

        Models get equal time. With a step each, an image would wait for a whole step of a clip at each of its own.
        """
        found: dict[str, list[Row]] = {}
        for row in self._running.values():
            found.setdefault(row.task.model, []).append(row)
        least = min((self._spent[name] for name in found if name in self._spent), default=0.0)
        self._spent = {name: self._spent.get(name, least) - least for name in found}
        return {name: rows for name, rows in found.items() if not self._spent[name]}

    def _forward(self, family: Family, rows: list[Row]) -> Outcome:
        try:
            return list(zip(rows, family.step(rows), strict=True))
        except Exception as error:
            if len(rows) == 1:
                return [(rows[0], error)]
        # one row's failure must not fail the others: run each row alone, so that only the failing row leaves
        return [pair for row in rows for pair in self._forward(family, [row])]

    # fold

    def _fold(self, outcome: Outcome) -> list[Event]:
        return [event for row, stepped in outcome for event in self._folded(row, stepped)]

    def _folded(self, row: Row, stepped: Stepped | Exception) -> Iterable[Event]:
        try:
            return self._fold_row(row, stepped)
        except Exception as error:  # a latent that cannot be copied off the device fails this row alone
            return [self._leave(row.task.id, error)]

    def _fold_row(self, row: Row, stepped: Stepped | Exception) -> Iterable[Event]:
        task = row.task
        if isinstance(stepped, Exception):
            return [self._leave(task.id, stepped)]
        row.renew, row.done = 0.0, row.done + 1
        stepped = _with_held(row, stepped)
        row.latent = stepped.latent
        row.previous = stepped.clean if row.sampler.multistep else None
        events: list[Event] = []
        if self._clock() - row.told_at >= self._tell_every_s:
            events.append(self._advanced(row, stepped))
        if row.done in task.capture_steps:
            events.append(LatentCaptured(task.id, row.done, off_device(row.latent), row.noises))
        if not row.left:
            return [*events, self._finish(row)]
        if self._worth_saving(row):
            row.saved_at = self._clock()
            history = None if row.previous is None else off_device(row.previous)
            latent = off_device(row.latent)
            anew = None if row.region is None else row.region.anew.cpu().numpy()
            events.append(Checkpointed(task.id, row.done, latent, row.generator_state, row.noises, history, anew))
        return events

    def _worth_saving(self, row: Row) -> bool:
        task = row.task
        due = task.checkpoint_every and (row.done - row.started) % task.checkpoint_every == 0
        return bool(due) and self._clock() - row.saved_at >= task.checkpoint_gap_s

    def _advanced(self, row: Row, stepped: Stepped) -> Advanced:
        row.told_at = self._clock()
        return Advanced(
            row.task.id, row.done, row.task.steps, self._preview(row, stepped) if row.task.preview else None
        )

    def _preview(self, row: Row, stepped: Stepped) -> Pixels | None:
        try:
            return self.families[row.task.model].preview(stepped.clean)
        except Exception as error:  # a failed preview must not fail the image
            log("gpu_worker").warning("no preview", task=row.task.id, error=repr(error))
            return None

    def _finish(self, row: Row) -> Event:
        del self._running[row.task.id]
        self._cancelled.discard(row.task.id)
        denoised = self._clock()
        try:
            return self._picture(row, denoised)
        except Exception as error:
            return Left(row.task.id, error)

    def _picture(self, row: Row, denoised: float) -> Finished:
        latent = off_device(row.latent)
        if not np.isfinite(latent).all():
            raise ModelError(
                f"model {row.task.model!r} gave a latent that is not finite; check its weights, or use dtype float32"
            )
        pixels = self.families[row.task.model].decode(row.latent)
        return Finished(
            id=row.task.id,
            latent=latent,
            pixels=pixels,
            steps_run=row.done - row.started,
            denoise_s=denoised - row.joined_at,
            decode_s=self._clock() - denoised,
            skipped=row.skipped / max(row.done - row.started, 1),
        )


def _with_held(row: Row, stepped: Stepped) -> Stepped:
    """Return the result of the step that led to `done`, with what the row holds. Its region is found by the first step,
    and ends after its last."""
    if row.region is not None and row.done == row.started + 1 and row.region.anew.all():
        row.held = row.region.found(stepped.clean)
    if row.held is None:
        return stepped
    kept = Stepped(row.held.put(stepped.latent, row.schedule, row.done), row.held.put_clean(stepped.clean))
    if row.region is not None and row.done == row.region.until:
        row.held = None
    return kept
