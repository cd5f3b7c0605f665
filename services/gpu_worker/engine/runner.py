"""The engine's own thread: the event loop gives it values and gets values back, torch never runs on the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue

import torch

from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import BatchRan, Event, Left
from services.gpu_worker.engine.family import Family
from services.gpu_worker.engine.rows import Task
from shared.runtime.telemetry import log

OnEvents = Callable[[list[Event]], None]
Order = Callable[[Engine], list[Event]]
HELD = 32
"""Steps that are counted together: while the next are drawn, not when the picture is waited for."""


class EngineThread:
    """Runs an Engine until stopped; `on_events` is called on the event loop between steps, in order."""

    def __init__(self, engine: Engine, on_events: OnEvents, *, threads: int = 0) -> None:
        """threads: torch.set_num_threads for the engine; 0 leaves torch's own choice."""
        self._engine = engine
        self._on_events = on_events
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._orders: SimpleQueue[Order | None] = SimpleQueue()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)
        self._thread.start()

    def submit(self, task: Task) -> None:
        self._orders.put(lambda engine: _submit(engine, task))

    async def serve(self, families: Mapping[str, Family]) -> None:
        """From now on these are the models that a task may name, and the engine holds no others; no row of another may
        be aboard."""
        here, done = dict(families), asyncio.Event()
        self._orders.put(lambda engine: self._serve(engine, here, done))
        await done.wait()

    def cancel(self, task_id: str) -> None:
        self._orders.put(lambda engine: _cancel(engine, task_id))

    def preview(self, task_id: str) -> None:
        self._orders.put(lambda engine: _preview(engine, task_id))

    async def stop(self) -> None:
        """Ends the thread after the step that is running; rows aboard are dropped without a word."""
        self._orders.put(None)
        await self._ended.wait()

    def _main(self) -> None:
        if self._threads:
            torch.set_num_threads(self._threads)
        with torch.inference_mode():
            self._run()
        self._tell(lambda _: self._ended.set(), [])

    def _run(self) -> None:
        held: list[Event] = []
        while True:
            events, stop = self._obey()
            if stop:
                return
            events += self._step()
            held += events
            # a wake-up costs the loop more than a fast step takes: what is only counted waits for company
            if len(held) >= HELD or not all(isinstance(event, BatchRan) for event in events):
                self._tell(self._on_events, held)
                held = []

    def _step(self) -> list[Event]:
        try:
            return self._engine.step()
        except Exception as error:  # a bug here must not leave requests waiting for ever
            log("gpu_worker").error("engine step failed", error=repr(error), exc_info=error)
            return self._engine.abandon(error)

    def _obey(self) -> tuple[list[Event], bool]:
        """Everything ordered since the last step; waits for the first order while there is nothing to draw."""
        events: list[Event] = []
        while self._engine.idle or not self._orders.empty():
            order = self._orders.get()
            if order is None:
                return events, True
            events += order(self._engine)
        return events, False

    def _serve(self, engine: Engine, families: dict[str, Family], done: asyncio.Event) -> list[Event]:
        engine.families = families
        self._tell(lambda _: done.set(), [])
        return []

    def _tell(self, handler: OnEvents, events: list[Event]) -> None:
        try:
            self._loop.call_soon_threadsafe(handler, events)
        except RuntimeError:  # the loop is gone: nobody is left to tell
            return


def _submit(engine: Engine, task: Task) -> list[Event]:
    try:
        engine.submit(task)
    except Exception as error:
        return [Left(task.id, error)]
    return []


def _cancel(engine: Engine, task_id: str) -> list[Event]:
    engine.cancel(task_id)
    return []


def _preview(engine: Engine, task_id: str) -> list[Event]:
    engine.preview(task_id)
    return []
