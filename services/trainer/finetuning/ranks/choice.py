"""Choose how several ranks share an iteration: data parallel, or the pipeline that the planner finds (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from services.trainer.finetuning.settings import RunSettings
from services.trainer.pipeline.comparison import as_json, compare
from services.trainer.pipeline.costs.profile import Profile
from services.trainer.pipeline.plans import Plan
from services.trainer.pipeline.settings import PlanSettings
from shared.domain.errors import ConfigurationError


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
            raise ConfigurationError(f"ranks.parallel: no pipeline fits {world} ranks and batch {settings.batch}")
        shape = f"S = {found.plan.stages}, M = {found.plan.micro_batches}, D = {found.plan.group}"
        said = f"a pipeline with {shape}, about {found.plan.seconds:.3g} s an iteration"
        advice = "" if found.worth_it else f", as ranks.parallel asks. The planner: {found.verdict}"
        return Choice(said + advice, found.plan, report)
    if found.worth_it:
        return Choice(found.verdict, found.plan, report)
    return Choice(f"data parallel (DDP). The planner: {found.verdict}", None, report)
