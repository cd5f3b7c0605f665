"""The engine's thread: the event loop sends commands to the engine and receives events; torch never runs on the event
loop."""

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
"""Most BatchRan events that are held back and passed on together: they feed metrics, which can wait while the next step
runs."""


class EngineThread:
    """Run an Engine until stopped. `on_events` is called on the event loop between steps, in order."""

    def __init__(self, engine: Engine, on_events: OnEvents, *, threads: int = 0) -> None:
        """threads: torch.set_num_threads for the engine; 0 keeps torch's own choice."""
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
        """Replace the models that a task may name; the engine then holds no others. No row of a removed model may be in
        the batch."""
        here, done = dict(families), asyncio.Event()
        self._orders.put(lambda engine: self._serve(engine, here, done))
        await done.wait()

    def cancel(self, task_id: str) -> None:
        self._orders.put(lambda engine: _cancel(engine, task_id))

    def preview(self, task_id: str) -> None:
        self._orders.put(lambda engine: _preview(engine, task_id))

    async def stop(self) -> None:
        """End the thread after the running step; rows in the batch are dropped without an event."""
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
            # waking the event loop costs more than a fast step, so BatchRan events are held back and passed on together
            if len(held) >= HELD or not all(isinstance(event, BatchRan) for event in events):
                self._tell(self._on_events, held)
                held = []

    def _step(self) -> list[Event]:
        try:
            return self._engine.step()
        except Exception as error:  # an engine bug must not leave requests waiting for ever
            log("gpu_worker").error("engine step failed", error=repr(error), exc_info=error)
            return self._engine.abandon(error)

    def _obey(self) -> tuple[list[Event], bool]:
        """Carry out all commands since the last step; with no rows, wait for the first command."""
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
        except RuntimeError:  # the event loop is closed
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
