"""The plan of a request with a deadline: the ordinary one where it is in time, else the preferred one that is
(PatchedServe §6)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from services.retriever.sooner import Run, plan_for
from shared.domain.forecasts import Forecast, forecast_of, format_s
from shared.domain.types import Plan, Request, Soonest


@dataclass(frozen=True, slots=True)
class Deadline:
    """A request's deadline, and what its runs would take now."""

    request: Request
    served: Collection[str]
    """The models of images, by which a plan's lane is known."""
    forecasts: Sequence[Forecast]

    @property
    def limit_s(self) -> float:
        assert self.request.deadline_s is not None
        return self.request.deadline_s

    def finish_s(self, plan: Plan) -> float | None:
        """Return the predicted seconds from acceptance to the plan's finish; None: unknown."""
        left = plan.run_steps(self.request.steps) - plan.start_step
        return None if (forecast := self._of(plan)) is None else forecast.finish_s(left)

    def late(self, plan: Plan) -> bool:
        """Return whether the plan is predicted to miss the deadline."""
        finish_s = self.finish_s(plan)
        return finish_s is not None and finish_s > self.limit_s

    def of(self, run: Run) -> tuple[Forecast, float] | None:
        """Return the forecast of a run and its predicted finish; None: unknown, so that the run is left out."""
        forecast = self._of(Plan(run.source, run.start.model))
        return None if forecast is None else (forecast, forecast.finish_s(run.left))

    def _of(self, plan: Plan) -> Forecast | None:
        return forecast_of(plan, self.request, self.served, self.forecasts)


def meet(deadline: Deadline, ordinary: Plan, runs: Sequence[Run]) -> Plan:
    """Return the plan of the first run that is in time; the ordinary plan where that one is, or where none is.

    runs: in order of preference (`runs_in_order`). A late plan names the soonest run.
    """
    limit_s, ordinary_s = deadline.limit_s, deadline.finish_s(ordinary)
    if ordinary_s is None or ordinary_s <= limit_s:
        return ordinary
    predicted = [(run, *found) for run in runs if (found := deadline.of(run)) is not None]
    for run, _, finish_s in predicted:
        if finish_s <= limit_s:
            plan = plan_for(run, ordinary)
            why = (
                f"Taken to meet the deadline of {format_s(limit_s)}: {run.said()} is predicted to take "
                f"{format_s(finish_s)}, {_said(ordinary, deadline.request)} {format_s(ordinary_s)}."
            )
            return replace(plan, for_deadline=changed(ordinary, plan, deadline.request), reason=f"{plan.reason} {why}")
    if not predicted:
        return ordinary
    run, _, finish_s = min(predicted, key=lambda one: one[2])
    # on idle workers another run may be the quickest
    soonest = Soonest(run.said(), finish_s, min(forecast.alone_s(one.left) for one, forecast, _ in predicted))
    why = f"No start within the bound meets the deadline of {format_s(limit_s)}: the soonest is predicted to take"
    return replace(ordinary, soonest=soonest, reason=f"{ordinary.reason} {why} {format_s(finish_s)} ({run.said()}).")


def changed(ordinary: Plan, plan: Plan, request: Request) -> str:
    """Return what a plan changes for a deadline: the model, T, or only the start."""
    if plan.model != ordinary.model:
        return "model"
    return "steps" if plan.run_steps(request.steps) != ordinary.run_steps(request.steps) else "start"


def _said(plan: Plan, request: Request) -> str:
    return f"{plan.model} after step {plan.start_step} of {plan.run_steps(request.steps)}"
