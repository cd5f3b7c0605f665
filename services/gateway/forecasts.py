"""Forecasts for a request with a deadline: what its runs would take now, by model and lane (PatchedServe §6.2)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from typing import Protocol

from services.gateway.finish import Fleet, Standalones, check_in_time, finish_s, wait_and_slowdown
from shared.catalog.jobs.lanes import Backlog, found_by
from shared.domain.forecasts import Forecast
from shared.domain.messages import lane_of, refine_lane
from shared.domain.types import Job, Modality, Plan, PlanSource, Request
from shared.models import ModelCard

FleetOf = Callable[[str, str], Fleet]
"""Model and lane → the workers that run the model's jobs of this lane."""


class Backlogs(Protocol):
    """The catalog's lanes (shared.catalog.jobs.lanes)."""

    async def backlogs(self, lane: str) -> Mapping[str, Backlog]: ...


@dataclass(frozen=True)
class Ahead:
    """What a request with a deadline finds: the jobs of each lane in which its plan may wait, and the workers."""

    request: Request
    card: ModelCard
    """Card of the model asked for."""
    lanes: Mapping[str, Sequence[ModelCard]]
    """Lane → the models that may run a plan there."""
    backlogs: Mapping[str, Backlog]
    standalones: Standalones
    fleet: FleetOf
    unable: Collection[str]
    """Models that no worker can run, or whose lane no worker consumes now."""

    def forecasts(self, plans: Sequence[Plan] = ()) -> list[Forecast]:
        """Return what a run of each lane and model takes now. Models of unknown step times are left out, and those that
        no worker would run soon; the model asked for stays.

        plans: those of the request's other images, which count in every lane. Exact repeats run no step.
        """
        request = self.request
        seconds = [self._plan_s(one) for one in plans if one.source is not PlanSource.EXACT]
        found = []
        for lane, models in self.lanes.items():
            behind = _behind(self.backlogs[lane], len(seconds), sum(seconds))
            for one in models:
                own, fleet = one.name == self.card.name, self.fleet(one.name, lane)
                if one.name in self.unable and not own:
                    continue
                guidance = request.guidance if own else one.guidance_for(request.guidance, self.card)
                step_s, decode_s = self.standalones.pace_s(request, one.name, guidance, fleet)
                if step_s > 0:
                    wait_s, slowdown = wait_and_slowdown(behind, fleet)
                    found.append(Forecast(lane, one.name, wait_s, step_s, decode_s, slowdown))
        return found

    def _plan_s(self, plan: Plan) -> float:
        return self.standalones.plan_s(self.request, plan, self.fleet(plan.model, lane_of(plan.model)))


def lanes_for(request: Request, card: ModelCard, served: Mapping[str, ModelCard]) -> dict[str, tuple[ModelCard, ...]]:
    """Return the lanes in which a plan of this request may wait, each with the models that may run the plan there."""
    if request.names_a_model or request.modality is Modality.VIDEO:
        return {lane_of(card.name): (card,)}
    models = (card, *(one for one in served.values() if one.name != card.name))
    lanes = {lane_of(one.name): (one,) for one in models}
    return lanes | ({refine_lane(request.modality): models} if len(models) > 1 else {})


@dataclass(frozen=True)
class Coming:
    """An image that is accepted soon: its row is not written yet."""

    tenant: str
    lane: str
    seconds: float
    """Predicted, alone."""


class Predictor:
    """The predicted finish of new requests that have a deadline.

    Requests that come at once do not find each other in the catalog yet. So each counts those that came before it.
    """

    def __init__(
        self,
        lanes: Backlogs,
        served: Mapping[str, ModelCard],
        standalones: Standalones,
        fleet: FleetOf,
        unable: Callable[[], Collection[str]],
    ) -> None:
        """served: the models of images. unable: returns the models that no worker can run soon."""
        self._lanes, self._served, self._standalones = lanes, served, standalones
        self._fleet, self._unable = fleet, unable
        self._coming: dict[str, Callable[[], Sequence[Coming]]] = {}
        """Returns the images of each request, by its first job's id, in the order in which the requests came."""

    def comes(self, first_id: str, requests: Sequence[Request], card: ModelCard) -> None:
        """Count these images until `came`, at first as if the model asked for ran all of their steps."""

        @cache
        def as_asked() -> list[Coming]:  # not computed where nobody has a deadline
            lane, fleet, noise = lane_of(card.name), self._fleet(card.name, ""), Plan(PlanSource.NOISE, card.name)
            return [Coming(one.tenant, lane, self._standalones.plan_s(one, noise, fleet)) for one in requests]

        self._coming[first_id] = as_asked

    def came(self, first_id: str) -> None:
        """Count the images no longer: their rows are written, or they were refused."""
        self._coming.pop(first_id, None)

    async def _backlog(self, lane: str, tenant: str, first_id: str) -> Backlog:
        """Return what the request with this first job finds in the lane; any id that nobody has: a new request."""
        # listed before the lane is read: a row that is written meanwhile may count twice, and none counts nowhere
        before = [*takewhile(lambda each: each[0] != first_id, self._coming.items())]
        of_each = {**await self._lanes.backlogs(lane)}
        coming = [one for name, images in before for one in self._coming.get(name, images)()]
        for one in coming:
            if one.lane == lane:
                of_each[one.tenant] = _behind(of_each.get(one.tenant, Backlog()), 1, one.seconds)
        return found_by(tenant, of_each)

    async def ahead(self, request: Request, card: ModelCard, first_id: str = "") -> Ahead | None:
        """Return what the request finds; None where its plan follows no deadline. first_id: as in `comes`."""
        if request.deadline_s is None or request.names_start:
            return None
        lanes = lanes_for(request, card, self._served)
        backlogs = {lane: await self._backlog(lane, request.tenant, first_id) for lane in lanes}
        return Ahead(request, card, lanes, backlogs, self._standalones, self._fleet, self._unable())

    async def predicted(self, jobs: Sequence[Job], *, refuse: bool) -> list[Job]:
        """Return the jobs with their predicted finish, where their request has a deadline. refuse: raise LateError for
        one that is predicted late. The lanes are read again: planning took its time."""
        found, before, before_s, known = list[Job](), 0, 0.0, dict[str, Backlog]()
        first_id = jobs[0].id
        if first_id in self._coming:
            planned = [Coming(job.request.tenant, job.lane, job.standalone_s) for job in jobs if not job.state.final]
            self._coming[first_id] = lambda: planned
        for job in jobs:
            if job.request.deadline_s is not None and job.standalone_s and not job.state.final:
                if job.lane not in known:
                    known[job.lane] = await self._backlog(job.lane, job.request.tenant, first_id)
                behind = _behind(known[job.lane], before, before_s)
                predicted_s = finish_s(job.standalone_s, behind, self._fleet(job.plan.model, job.lane))
                if refuse:
                    check_in_time(job.request, job.standalone_s, predicted_s, job.plan.soonest)
                job = replace(job, predicted_s=predicted_s)
            before, before_s = before + (not job.state.final), before_s + job.standalone_s
            found.append(job)
        return found


def _behind(backlog: Backlog, jobs: int, seconds: float) -> Backlog:
    """Return the backlog with this many more queued jobs, which take `seconds` alone."""
    return replace(backlog, queued=backlog.queued + jobs, queued_s=backlog.queued_s + seconds)
