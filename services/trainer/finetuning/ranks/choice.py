"""Choose how several ranks share an iteration: data parallel, or the pipeline that the planner finds (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from services.trainer.finetuning.ranks.memory_advice import memory_advice
from services.trainer.finetuning.settings import RunSettings
from services.trainer.pipeline.comparison import as_json, compare
from services.trainer.pipeline.costs.profile import Profile
from services.trainer.pipeline.plans import Plan
from services.trainer.pipeline.search import LARGEST_GROUP, best_plan
from services.trainer.pipeline.settings import PlanSettings
from shared.domain.errors import ConfigurationError
from shared.models.memory import said


@dataclass(frozen=True)
class Choice:
    """How a run is shared, and why."""

    why: str
    plan: Plan | None = None
    """The pipeline to run; None: data parallel."""
    report: dict[str, Any] | None = None
    """The planner's predictions, as `train plan --json` prints them; None without the planner."""


def chosen(settings: RunSettings, world: int, profile: Profile | None, memory_bytes: float | None = None) -> Choice:
    """Return the choice for a number of ranks; `auto` asks the planner if there is a profile.

    memory_bytes: of one device; None: no limit. A run has no FSDP, so a pipeline must only be faster than DDP.
    Raises ConfigurationError where no pipeline is feasible and one is asked for.
    """
    parallel = settings.ranks.parallel
    if parallel == "data":
        return Choice("data parallel")
    if profile is None:
        return Choice("data parallel, since no profile is given")
    job = PlanSettings(
        batch=settings.batch,
        devices=world,
        self_conditioning=settings.self_conditioning,
        device_memory_bytes=memory_bytes,
    )
    found = compare(profile, job, with_fsdp=False)
    report = as_json(found, profile)
    if parallel == "pipeline":
        if found.plan is None:
            raise ConfigurationError(_no_pipeline(settings, profile, job))
        shape = f"S = {found.plan.stages}, M = {found.plan.micro_batches}, D = {found.plan.group}"
        how = f"a pipeline with {shape}, about {found.plan.seconds:.3g} s an iteration"
        advice = "" if found.worth_it else f", as ranks.parallel asks. The planner: {found.verdict}"
        return Choice(how + advice, found.plan, report)
    if found.worth_it:
        return Choice(found.verdict, found.plan, report)
    return Choice(f"data parallel (DDP). The planner: {found.verdict}", None, report)


def _no_pipeline(settings: RunSettings, profile: Profile, job: PlanSettings) -> str:
    """Return why no pipeline fits, and what to change."""
    wrong = f"ranks.parallel: no pipeline fits {job.devices} ranks and batch {job.batch}"
    anywhere = job.model_copy(update={"device_memory_bytes": None, "fill": False})
    if job.device_memory_bytes is None or best_plan(profile, anywhere) is None:
        return f"{wrong}: take ranks whose number has a divisor from 2 to {LARGEST_GROUP}, and a batch that it divides"
    advice = memory_advice(settings, job.devices, pipeline=True)
    return f"{wrong} in {said(int(job.device_memory_bytes))} of memory a GPU: {advice}"
