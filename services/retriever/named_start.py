"""Starts that a client names: the finished image of a job at a strength, or a job's clip that goes on; without a table,
a floor or a search."""

from __future__ import annotations

from dataclasses import replace

from services.retriever.planning import from_noise
from services.retriever.question import Question, Rules
from services.retriever.relation import relation
from shared.catalog.jobs.jobs import Jobs
from shared.domain.errors import InvalidRequestError, NotFoundError, UnreadableRowError
from shared.domain.identity import same_caller
from shared.domain.plan_rules import steps_at
from shared.domain.types import (
    PICTURE_CODEC,
    Candidate,
    Job,
    Lead,
    Modality,
    ModelPlan,
    Plan,
    PlanSource,
    Request,
    Scope,
    Source,
    Vector,
    vector_from,
)
from shared.models.card import FrameRule


async def source_of(request: Request, jobs: Jobs) -> Job:
    """Return the job whose image or clip the request starts from. Raises NotFoundError for a job without one, and for
    jobs of other callers and private jobs of other users, as if these did not exist; InvalidRequestError for a result
    that does not fit."""
    try:
        job = await jobs.get(request.named_job)
    except (NotFoundError, UnreadableRowError):
        raise _unknown(request) from None
    made = job.request
    own = same_caller(request.tenant, request.user, made.tenant, made.user)
    if not own or (made.scope is Scope.PRIVATE and made.user != request.user):
        raise _unknown(request)
    if request.continue_job and made.modality is not Modality.VIDEO:
        raise InvalidRequestError("continue_job", "must be the job of a clip; from_job begins with an image", job.id)
    if job.result is None or not job.result.picture_key:
        said = f"job {job.id} is {job.state} and has no {made.modality.noun}; only a succeeded job has one"
        raise NotFoundError(f"{request.named_in}: {said}")
    if request.from_job and job.frames not in (1, request.frames):
        clips = "" if request.frames == 1 else f", or a clip of {request.frames} frames"
        raise InvalidRequestError("from_job", f"must be the job of an image{clips}", job.id)
    if request.continue_job and made.size != request.size:
        raise InvalidRequestError("size", f"must be {made.size}, the size of the clip that goes on", request.size)
    return job


def lead_from(request: Request, source: Job, rule: FrameRule) -> Lead | None:
    """Return the frames with which the request's clip begins: a job's clip that goes on, or the image of a job as the
    first frame. None where the run starts from all frames of the job. The gateway limits the whole clip."""
    result = source.result
    assert result is not None
    if request.from_job and source.frames == request.frames:
        return None
    held = rule.held(request.frames, source.frames)
    return Lead(source.id, result.picture_key, result.picture_sha256, source.frames, held)


def _unknown(request: Request) -> NotFoundError:
    said = "no such job; it never existed or its result expired"
    return NotFoundError(f"{request.named_in} {request.named_job!r}: {said}")


def from_named_job(question: Question, rules: Rules, source: Job, vector: Vector | None, lead: Lead | None) -> Plan:
    """Return the plan that starts from this job's image or continues its clip, by the model that the request asks for.

    lead: the frames with which the clip begins. vector: the embedding of the request's prompt. The similarity of both
    prompts only explains the plan. No latent is captured: it would follow the chosen image more than the prompt under
    which later requests would find it.
    """
    request, made, result = question.request, source.request, source.result
    assert result is not None
    start = request.steps - steps_at(request.strength, request.steps)
    uncached = source.plan.uncached or made.upload is not None
    named = f"job {source.id}, which the request names"
    starts = "the last frame" if request.continue_job else f"the {made.modality.noun}"
    begins = "" if lead is None else f" The clip begins with {_counted(lead.frames)} of that job."
    if start <= 0:
        if lead is None:
            said = f"strength {request.strength:g} keeps nothing of {starts} of {named}."
            return from_noise(question, rules, f"Generated from noise: {said}")
        held = f"Generated from noise after the last {_counted(lead.held)} of {named}.{begins}"
        return replace(from_noise(question, rules, held), capture_steps=(), lead=lead, uncached=uncached)
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
            f"Starts after {start} of {request.steps} steps from {starts} of {named}, at strength "
            f"{request.strength:g}.{begins}",
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
        lead=lead,
        uncached=uncached,
    )


def _counted(frames: int) -> str:
    return "1 frame" if frames == 1 else f"{frames} frames"


def _root(source: Job) -> str:
    """Return the root of the source's image: what the cache calls it, also where the image never entered the cache."""
    plan = source.plan
    return source.id if plan.is_miss else plan.root or plan.sources[0].entry_id
