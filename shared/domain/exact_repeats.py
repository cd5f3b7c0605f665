"""Exact repeats: requests that an image in the cache answers as it is (docs/architecture.md, Nouns)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from shared.domain.types import CompatKey, Entry, Job, JobState, Plan, PlanSource, Request, Result


def exact_key(request: Request, compat: CompatKey, sampler: str = "") -> str:
    """Return 32 hex digits over everything in a request that changes its image.

    These are prompt, negative prompt, size, frames, seed, guidance, steps (T, or that the plan chooses T), savings and
    fresh noise. A job or an image chosen by the client counts too, with its strength. Of the model asked for (the
    large one for `auto`) they are weights, sampler and dtype. `repeat_weights` returns the models whose image may
    answer. Cache settings are left out: an image that started from another one answers a repeat too. A request whose
    seed the gateway chose has a key too, because a later request may name that seed. Such a request itself is never
    looked up by its key.

    `sampler` is the id of the sampler. It is part of the key if it differs from the noise process in `compat`, which
    samplers may share.
    """
    compat = compat.unsteered  # negative prompt and guidance are here as they are
    same = [
        request.modality.value,
        request.prompt,
        request.negative_prompt,
        str(compat),
        request.frames,
        request.seed,
        float(request.guidance),
        request.steps,
        float(request.savings),
        float(request.fresh_noise),
        *([sampler] if sampler not in ("", compat.sampler) else []),
        *(["auto"] if request.steps_auto else []),
        *(["from", request.from_job, float(request.strength)] if request.from_job else []),
        *(["upload", request.upload.sha256, float(request.strength)] if request.upload else []),
        *(["continue", request.continue_job, float(request.strength)] if request.continue_job else []),
    ]
    return hashlib.sha256(json.dumps(same).encode()).hexdigest()[:32]


def repeat_weights(request: Request, asked: str, served: Iterable[str]) -> frozenset[str]:
    """Return the weights hashes of the models whose image may answer the request.

    `asked` is the hash of the model asked for. A request that names a model accepts images of that model only. A
    request that names no model accepts the image of any served model, because any of them may be chosen.
    """
    return frozenset((asked,) if request.names_a_model else (asked, *served))


def repeat_result(plan: Plan, picture_bytes: int) -> Result:
    """Return the result of an exact repeat: the stored image, no step run."""
    return Result(
        picture_key=plan.state_key,
        picture_sha256=plan.state_sha256,
        picture_bytes=picture_bytes,
        model=plan.model,
        weights_hash=plan.weights_hash,
        steps_run=0,
    )


def entry_of(job: Job) -> Entry | None:
    """Return the job's cache entry, still without states; its id is the job's.

    None for a job that did not finish, whose request does not write the cache, or that is itself an exact repeat or
    descends from an uploaded image.
    """
    request, result = job.request, job.result
    if job.state is not JobState.SUCCEEDED or result is None or result.compat is None:
        return None
    if not request.cache.writes or job.plan.source is PlanSource.EXACT or job.plan.uncached:
        return None
    return Entry(
        id=job.id,
        job_id=job.id,
        prompt=request.prompt,
        tenant=request.tenant,
        user=request.user,
        scope=request.scope,
        model=result.model,
        compat=result.compat,
        exact_key=job.exact_key,
        picture_key=result.picture_key,
        picture_sha256=result.picture_sha256,
        encoder_hash=job.encoder_hash,
        created_at=0.0,  # set by the catalog's clock
        root="" if job.plan.is_miss else job.plan.root or job.plan.entry_id,  # older plans name no root
        seed=request.seed,
        background_root="" if job.plan.is_miss else job.plan.background_root,
        parts=job.plan.parts,
        mask=job.mask,
    )
