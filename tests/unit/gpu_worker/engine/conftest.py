"""Tasks for the tiny model, and an engine that runs them to their end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Checkpointed, Event, Finished
from services.gpu_worker.engine.rows import Task
from services.gpu_worker.families import Family
from services.gpu_worker.jobs.codecs import decode_checkpoint, encode_checkpoint
from shared.domain.types import Plan, PlanSource, Size

STEPS = 10
PLAN = Plan(source=PlanSource.NOISE, model="large")


def task(name: str = "a", **changes: object) -> Task:
    plain = Task(id=name, model="large", prompt="a red fox", size=Size(64, 64), steps=STEPS, guidance=2.5, seed=7)
    return replace(plain, **changes)  # type: ignore[arg-type]


def drive(
    family: Family, tasks: Iterable[tuple[int, Task]], max_rows: int = 8, tell_every_s: float = 0.0
) -> list[Event]:
    """Runs every task to its end; each is submitted before the given step."""
    engine = Engine({"large": family}, max_rows=max_rows, tell_every_s=tell_every_s)
    todo = sorted(tasks, key=lambda pair: pair[0])
    events: list[Event] = []
    step = 0
    while todo or not engine.idle:
        while todo and todo[0][0] <= step:
            engine.submit(todo.pop(0)[1])
        events += engine.step()
        step += 1
    return events


def finished(events: list[Event]) -> dict[str, Finished]:
    return {event.id: event for event in events if isinstance(event, Finished)}


def solo(family: Family, one: Task) -> Finished:
    return finished(drive(family, [(0, one)]))[one.id]


def resumed(one: Task, events: list[Event]) -> Task:
    """The task from the first checkpoint of its lost run."""
    saved = next(event for event in events if isinstance(event, Checkpointed) and event.id == one.id)
    written = encode_checkpoint(
        saved.latent, saved.step, saved.generator_state, PLAN, saved.noises, saved.previous, saved.anew
    )
    return replace(one, start=decode_checkpoint(written)[0])
