"""Starts that a client names: the finished image of a job at a strength, without a table, a floor or a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from services.retriever.planning import from_noise
from services.retriever.question import Question, Rules
from services.retriever.relation import relation
from shared.catalog.jobs.jobs import Jobs
from shared.domain.errors import InvalidRequestError, NotFoundError, UnreadableRowError
from shared.domain.plan_rules import steps_at
from shared.domain.types import (
    PICTURE_CODEC,
    Candidate,
    Job,
    ModelPlan,
    Plan,
    PlanSource,
    Request,
    Scope,
    Source,
    Vector,
    vector_from,
)


async def source_of(request: Request, jobs: Jobs) -> Job:
    """Return the job whose image the request starts from. Raises NotFoundError for a job without an image, and for jobs
    of other tenants and private jobs of other users, as if these did not exist."""
    try:
        job = await jobs.get(request.from_job)
    except (NotFoundError, UnreadableRowError):
        raise _unknown(request) from None
    made = job.request
    if made.tenant != request.tenant or (made.scope is Scope.PRIVATE and made.user != request.user):
        raise _unknown(request)
    if job.result is None or not job.result.picture_key:
        raise NotFoundError(f"from_job: job {job.id} is {job.state} and has no image; only a succeeded job has one")
    if made.frames not in (1, request.frames):
        clips = "" if request.frames == 1 else f", or a clip of {request.frames} frames"
        raise InvalidRequestError("from_job", f"must be the job of an image{clips}", job.id)
    return job


def _unknown(request: Request) -> NotFoundError:
    return NotFoundError(f"from_job {request.from_job!r}: no such job; it never existed or its result expired")


def from_named_job(
    question: Question, rules: Rules, source: Job, vector: Vector | None, degraded: Sequence[str] = ()
) -> Plan:
    """Return the plan that starts from this job's image, by the model that the request asks for.

    vector: the embedding of the request's prompt. The similarity of both prompts only explains the plan. No latent is
    captured: it would follow the chosen image more than the prompt under which later requests would find it.
    """
    request, made, result = question.request, source.request, source.result
    assert result is not None
    left = steps_at(request.strength, request.steps)
    named = f"the image of job {source.id}, which the request names"
    if left >= request.steps:
        return from_noise(
            question, rules, f"Generated from noise: strength {request.strength:g} keeps nothing of {named}."
        )
    start = request.steps - left
    alike = vector is not None and source.vector and source.encoder_hash == question.encoder_hash
    similarity = float(vector @ vector_from(source.vector)) if vector is not None and alike else 0.0
    related = relation(request, made, similarity if alike else -1.0).value
    chosen = Candidate(
        entry_id=source.id,
        kind="image",
        similarity=similarity,
        allowed_step=start,
        start_step=start,
        prompt=made.prompt,
        chosen=True,
        reason=f"named by the request, at strength {request.strength:g}",
        model=result.model,
        relation=related,
    )
    return replace(
        from_noise(
            question,
            rules,
            f"Starts after {start} of {request.steps} steps from {named}, at strength {request.strength:g}.",
        ),
        source=PlanSource.IMAGE,
        start_step=start,
        sources=(Source(source.id, result.picture_key, result.picture_sha256, PICTURE_CODEC),),
        similarity=similarity,
        capture_steps=(),
        may_run=(ModelPlan(question.model, start),),
        miss_model=question.model,
        candidates=(chosen,),
        relation=related,
        root=_root(source),
    )


def _root(source: Job) -> str:
    """Return the root of the source's image: what the cache calls it, also where the image never entered the cache."""
    plan = source.plan
    return source.id if plan.is_miss else plan.root or plan.sources[0].entry_id
