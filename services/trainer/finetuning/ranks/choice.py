"""Choose how several ranks share an iteration: data parallel, or the pipeline that the planner finds (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from services.trainer.finetuning.settings import RunSettings
from services.trainer.pipeline.comparison import as_json, compare
from services.trainer.pipeline.costs.profile_file import read_profile
from services.trainer.pipeline.settings import PlanSettings
from shared.domain.errors import ConfigurationError


@dataclass(frozen=True)
class Choice:
    """How a run is shared, and why."""

    parallel: str
    """data or pipeline."""
    why: str
    plan: dict[str, Any] | None = None
    """What the planner predicts, as `train plan --json` prints it, where it was asked."""


def chosen(settings: RunSettings, world: int) -> Choice:
    """Return the choice for a number of ranks; `auto` asks the planner if there is a profile.

    Raises ConfigurationError for a pipeline without a profile or without a feasible plan.
    """
    ranks = settings.ranks
    if world == 1:
        return Choice("data", "one rank")
    if ranks.profile is None:
        if ranks.parallel == "pipeline":
            raise ConfigurationError(
                "ranks.profile: parallel = pipeline needs a profile (docs/how-to/plan-a-pipeline.md)"
            )
        return Choice(
            "data", "data parallel" if ranks.parallel == "data" else "data parallel, since no profile is given"
        )
    if ranks.parallel == "data":
        return Choice("data", "data parallel")
    job = PlanSettings(
        profile=ranks.profile, batch=settings.batch, devices=world, self_conditioning=settings.self_conditioning
    )
    profile = read_profile(ranks.profile)
    found = compare(profile, job)
    if ranks.parallel == "pipeline" and found.plan is None:
        raise ConfigurationError(f"ranks.parallel: no pipeline fits {world} ranks and batch {settings.batch}")
    pipeline = ranks.parallel == "pipeline" or found.worth_it
    return Choice("pipeline" if pipeline else "data", found.verdict, as_json(found, profile))
