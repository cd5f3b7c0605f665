"""Play a session trace in a closed loop with bounded requests in flight; each user waits for the last image first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

from load.sessions import Prompt
from shared.client import Picture
from shared.domain.types import PlanSource

T = TypeVar("T")
Draw = Callable[[int, Prompt], Awaitable[Picture]]


@dataclass(frozen=True, slots=True)
class Drawn:
    """One answered request of the trace; `index` is the request's position in the trace."""

    index: int
    source: str
    start_step: int
    steps: int
    steps_run: int
    similarity: float
    seed: int
    seconds: float
    from_prompt: str
    degraded: tuple[str, ...]
    timings: dict[str, float]
    relation: str = ""
    """Relation of the plan; empty in the answers of earlier versions, as are the three below."""
    run_of: int = 0
    """T of the run."""
    job: str = ""
    source_job: str = ""
    """Job of the image that this one started from; empty from noise."""

    @property
    def hit(self) -> bool:
        return self.source == PlanSource.LATENT

    @property
    def exact(self) -> bool:
        return self.source == PlanSource.EXACT


def first_free(waiting: Sequence[int], rows: Sequence[Prompt], busy: Collection[int]) -> int | None:
    """Return the earliest waiting request whose user is not busy; None if all their users are busy."""
    return next((index for index in waiting if rows[index].user not in busy), None)


async def play(
    rows: Sequence[Prompt],
    draw: Draw,
    *,
    done: Collection[int] = (),
    concurrency: int = 8,
    think_s: float = 0.2,
) -> AsyncIterator[tuple[Drawn, Picture]]:
    """Generate every row that is not `done`, at most `concurrency` at a time, in order of arrival.

    A user sends again no sooner than `think_s` after the last image. Real users take minutes; `think_s` is enough for
    the cache to insert the image. Answers are yielded as they come; a failed request ends the run.
    """
    waiting = [index for index in range(len(rows)) if index not in set(done)]
    free_at: dict[int, float] = {}
    flying: dict[asyncio.Task[tuple[Drawn, Picture]], int] = {}
    try:
        while waiting or flying:
            now = time.monotonic()
            busy = set(flying.values()) | {user for user, at in free_at.items() if at > now}
            index = first_free(waiting, rows, busy) if len(flying) < concurrency else None
            if index is not None:
                waiting.remove(index)
                flying[asyncio.create_task(_answered(index, rows[index], draw))] = rows[index].user
                continue
            finished = await _wait(flying, min((at - now for at in free_at.values() if at > now), default=None))
            for task in finished:
                free_at[flying.pop(task)] = time.monotonic() + think_s
                yield task.result()
    finally:
        for task in flying:
            task.cancel()
        await asyncio.gather(*flying, return_exceptions=True)


async def _wait(tasks: Collection[asyncio.Task[T]], timeout_s: float | None) -> set[asyncio.Task[T]]:
    """Wait until a task finishes or `timeout_s` is over; return the finished tasks."""
    if not tasks:
        await asyncio.sleep(timeout_s or 0.0)
        return set()
    done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    return done


async def _answered(index: int, row: Prompt, draw: Draw) -> tuple[Drawn, Picture]:
    start = time.monotonic()
    picture = await draw(index, row)
    return drawn(index, picture, time.monotonic() - start), picture


def drawn(index: int, picture: Picture, seconds: float) -> Drawn:
    """Return the part of an answer that the benchmark keeps."""
    plan = picture.plan
    chosen = next((one.prompt for one in plan.candidates if one.chosen), "")
    return Drawn(
        index=index,
        source=str(plan.source),
        start_step=plan.start_step,
        steps=picture.job.request.steps,
        steps_run=picture.steps_run,
        similarity=plan.similarity,
        seed=picture.seed,
        seconds=seconds,
        from_prompt=chosen,
        degraded=plan.degraded,
        timings=stages(picture),
        relation=plan.relation,
        run_of=plan.run_steps(picture.job.request.steps),
        job=picture.job.id,
        source_job=plan.entry_id,
    )


def stages(picture: Picture) -> dict[str, float]:
    """Return the answer's seconds by stage."""
    return {one.name: getattr(picture.timings, one.name) for one in fields(picture.timings) if one.name.endswith("_s")}
