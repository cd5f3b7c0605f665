"""Predicted finish of a request at its acceptance, and the refusal of one that would be late (PatchedServe §6)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from shared.catalog.jobs.lanes import Backlog
from shared.domain.errors import InvalidRequestError, LateError
from shared.domain.messages import WorkerReported
from shared.domain.types import Plan, Request, Soonest
from shared.models import ModelCard
from shared.models.k_table import Profiles
from shared.models.latency import KIND
from shared.models.memory import MOST_PIXELS
from shared.models.standalone import Line, Standalone, line_through, pixels_of
from shared.runtime.telemetry import log

REREAD_S = 30.0
UNKNOWN = Line(1.0, 0.0)
"""Step times that were neither profiled nor reported: batches count as no slower than single rows."""


@dataclass(frozen=True)
class Fleet:
    """The workers of one model, by their reports."""

    workers: int = 1
    rows: int = 1
    """Rows of one worker's batch."""
    step_s: Line = UNKNOWN
    """Seconds of a step by rows."""
    one_row_s: float = 0.0
    """Seconds of a step of one row; 0: not reported."""

    def slowdown(self, rows: int) -> float:
        """Return the factor by which the steps of a request take longer in a batch of this many rows."""
        alone = self.step_s.fixed_s + self.step_s.per_pixel_s
        return max((self.step_s.fixed_s + self.step_s.per_pixel_s * rows) / alone, 1.0)


def fleet_of(
    model: str,
    reports: Iterable[WorkerReported],
    standalone: Standalone | None,
    max_rows: int,
    max_pixels: int = 0,
    *,
    refines: bool = False,
) -> Fleet:
    """Return the fleet that serves this model: by the live workers' reports, or one worker like the model's profile
    where none has reported. The workers assigned to the model consume its lane; without any, all that can run it count.

    max_pixels: of a batch, where it is set; 0: what the workers' memory holds. Requests of the default size count.
    refines: of the lane `refine`, which workers of every model consume."""
    able = [one for one in reports if model == one.model or (model in one.serves and model not in one.cannot)]
    serving = able if refines else [one for one in able if one.model == model] or able
    measured: dict[int, list[float]] = {}
    for report in able:
        for name, rows, seconds in report.step_s:
            if name == model and rows > 0 and seconds > 0:
                measured.setdefault(rows, []).append(seconds)
    step_s = {rows: median(seconds) for rows, seconds in measured.items()}
    if len(step_s) < 2 and standalone is not None and standalone.known:
        scale = next((seconds / standalone.step_s(rows) for rows, seconds in step_s.items()), 1.0)
        step_s = {rows: scale * standalone.step_s(rows) for rows in (1, max_rows)}
    line = line_through(step_s, 1) if step_s else UNKNOWN
    one_row_s = line.fixed_s + line.per_pixel_s if measured else 0.0
    each = 1 if standalone is None else pixels_of(standalone.card)
    of_each = [(one.max_rows, max_pixels or _held(one)) for one in serving] or [(max_rows, max_pixels or MOST_PIXELS)]
    rows = max(min(most, pixels // each) for most, pixels in of_each)
    return Fleet(max(len(serving), 1), max(rows, 1), line, one_row_s)


def _held(report: WorkerReported) -> int:
    """Return the pixels of a worker's batch: its memory must hold them with any of its models."""
    return min((*(pixels for _, pixels in report.pixels if pixels), MOST_PIXELS))


def wait_and_slowdown(backlog: Backlog, fleet: Fleet) -> tuple[float, float]:
    """Return the seconds until the jobs ahead of a new request have left, and the factor by which its batch slows the
    request down.

    The jobs ahead leave at the rate of full batches; then the request runs in a batch as full as the others. Running
    jobs show at least as many rows, also while no worker's report is known.
    """
    busy, places = backlog.queued + backlog.running, max(fleet.workers * fleet.rows, backlog.running)
    if busy < places:
        return 0.0, fleet.slowdown(min(busy // fleet.workers + 1, fleet.rows))
    full = fleet.slowdown(fleet.rows)
    return backlog.queued_s * full / places, full


def finish_s(own_s: float, backlog: Backlog, fleet: Fleet) -> float:
    """Return the predicted seconds from acceptance to the finish of a request that takes `own_s` alone."""
    wait_s, slowdown = wait_and_slowdown(backlog, fleet)
    return wait_s + own_s * slowdown


def check_in_time(request: Request, own_s: float, predicted_s: float, soonest: Soonest | None = None) -> None:
    """Raise LateError if the request is predicted late, InvalidRequestError if it would be late on an idle worker.

    soonest: the run that would finish first, where the plan names one."""
    limit = request.deadline_s
    if limit is None or predicted_s <= limit:
        return
    field, run = "slo" if request.slo else "deadline_s", ""
    if soonest is not None:
        own_s = min(own_s, soonest.alone_s)
        if soonest.finish_s < predicted_s:
            predicted_s, run = soonest.finish_s, f" ({soonest.run})"
    if own_s > limit:
        rule = f"must leave at least {_up(own_s)} s, the predicted time of this request alone"
        raise InvalidRequestError(field, rule, f"{limit:g} s")
    delay = max(predicted_s - limit, 0.1)
    raise LateError(
        f"{field}: {limit:g} s cannot be met, the predicted finish is {_up(predicted_s)} s after acceptance{run}; "
        f"retry in {delay:.1f} s, or set deadline_s to at least {_up(predicted_s)}",
        retry_after_s=delay,
    )


def _up(seconds: float) -> str:
    """Return the seconds with one decimal, rounded up, so that a deadline of that many is enough."""
    return f"{math.ceil(seconds * 10) / 10:g}"


class Standalones:
    """Seconds that requests take alone, by the profiles of the served models."""

    def __init__(self, cards: Mapping[str, ModelCard], profiles: Profiles) -> None:
        self._cards, self._profiles = cards, profiles
        self._known: dict[str, Standalone] = {}

    async def read(self) -> None:
        """Read the profiles. Without the catalog, those read before count, else those beside the weights."""
        for name, card in self._cards.items():
            try:
                measured = await self._profiles.get(KIND, name, card.weights_hash)
            except Exception as error:  # an unreadable profile stops neither the gateway nor later readings
                log("gateway").warning("measured step times not read", model=name, error=repr(error))
                if name in self._known:
                    continue
                measured = None
            self._known[name] = Standalone.of(card, measured)

    async def keep_fresh(self) -> None:
        """Read the profiles again every REREAD_S seconds, without end, so that a new one needs no restart."""
        while True:
            await asyncio.sleep(REREAD_S)
            await self.read()

    def of(self, model: str) -> Standalone | None:
        return self._known.get(model)

    def plan_s(self, request: Request, plan: Plan, fleet: Fleet) -> float:
        """Return the seconds of the plan's steps alone; 0: unknown."""
        known = self._known.get(plan.model)
        if known is None:
            return 0.0
        steps = plan.run_steps(request.steps) - plan.start_step
        guidance = plan.run_guidance(request.guidance)
        return known.seconds(request.size, request.frames, guidance, steps, fleet.one_row_s)

    def pace_s(self, request: Request, model: str, guidance: float, fleet: Fleet) -> tuple[float, float]:
        """Return the seconds of one step and of decoding alone, by this model; 0, 0: unknown."""
        if (known := self._known.get(model)) is None:
            return 0.0, 0.0
        decode_s, with_step_s = (
            known.seconds(request.size, request.frames, guidance, steps, fleet.one_row_s) for steps in (0, 1)
        )
        return with_step_s - decode_s, decode_s

    def slo_s(self, request: Request, model: str, multiple: float, fleet: Fleet) -> float:
        """Return the deadline of a class: a multiple of the request's time from noise by the model that it names.
        Raises InvalidRequestError where that time is unknown."""
        known = self._known.get(model)
        alone_s = (
            0.0
            if known is None
            else known.seconds(request.size, request.frames, request.guidance, request.steps, fleet.one_row_s)
        )
        if alone_s <= 0:
            rule = f"model {model!r} has no measured step times; run `afterimage profile`, or name deadline_s"
            raise InvalidRequestError("slo", rule, request.slo)
        return multiple * alone_s
