"""Jobs as the console shows them: a row of its lists, and everything about one job."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from services.gateway.deadlines import dropped_because, late_because
from services.gateway.http.answers import origin
from shared.client.views import Picture
from shared.domain.identity import subject_of
from shared.domain.plan_rules import shown_plan
from shared.domain.types import Job, JobState, Timings


def summary(job: Job) -> dict[str, Any]:
    """Return the facts of a list's row; seconds are floats, times Unix seconds."""
    request, result, plan = job.request, job.result, shown_plan(job.plan, subject_of(job.request.user))
    timings = result.timings if result else Timings()
    model = result.model if result else plan.model
    came = origin(
        Picture(
            replace(job, plan=plan),
            model,
            result.steps_run if result else 0,
            timings,
            skipped=result.skipped if result else 0.0,
        )
    )
    ended = job.updated_at if job.state.final else None
    return {
        "id": job.id,
        "state": job.state.value,
        "kind": request.modality.value,
        "prompt": request.prompt,
        "model": model,
        "width": request.size.width,
        "height": request.size.height,
        "frames": job.frames,
        "created_at": job.created_at,
        "ended_at": ended,
        "step": job.checkpoint_step,
        "steps": came["steps"],
        "source": "upload" if request.upload is not None and request.upload.masked else came["source"],
        "start_step": came["start_step"],
        "steps_run": came["steps_run"],
        "skipped": came["skipped"],
        "steps_saved": came["steps_saved"] if job.state is JobState.SUCCEEDED else 0,
        "similarity": came["similarity"],
        "relation": plan.relation,
        "sources": [one.entry_id for one in plan.sources if one.entry_id],
        "from_job": request.from_job or request.continue_job,
        "masked": request.upload is not None and request.upload.masked,
        "seed": str(request.seed),  # up to 2^64 − 1: no number of JavaScript
        "seconds": timings.total_s or (ended - job.created_at if ended else 0.0),
        "deadline_s": request.deadline_s,
        "deadline_met": job.deadline_met,
        "predicted_s": job.predicted_s or job.standalone_s,
        "degraded": list(plan.degraded),
        "error": job.error or dropped_because(job) or "",
    }


def detail(job: Job, timings: Timings) -> dict[str, Any]:
    """Return the summary with the request's options, the plan's reason and candidates, and the seconds by stage."""
    request, plan = job.request, shown_plan(job.plan, subject_of(job.request.user))
    late = late_because(job)
    return summary(job) | {
        "negative_prompt": request.negative_prompt,
        "guidance": request.guidance,
        "cache": request.cache.value,
        "scope": request.scope.value,
        "variation": request.variation.value,
        "savings": request.savings,
        "priority": request.priority,
        "strength": request.strength if request.named_job else None,
        "attempt": job.attempt,
        "reason": plan.reason,
        "for_deadline": plan.for_deadline,
        "warnings": [*job.warnings, *([late] if late else [])],
        "candidates": [
            {
                "id": one.entry_id,
                "kind": one.kind,
                "prompt": one.prompt,
                "similarity": one.similarity,
                "allowed_step": one.allowed_step,
                "start_step": one.start_step,
                "steps": one.steps,
                "relation": one.relation,
                "chosen": one.chosen,
                "reason": one.reason,
            }
            for one in plan.candidates
        ],
        "timings": asdict(timings),
    }
