"""From a recorded plan to what the engine is given: revalidated, with a smaller K where a blob is gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from services.gpu_worker.codecs import decode_checkpoint, decode_png, decode_state
from services.gpu_worker.rows import FromNoise, FromPicture, FromState, Start, Task
from shared.blobs import Blobs
from shared.catalog import Entries
from shared.errors import BlobCorruptError, BlobMissingError, ModelError, NotFoundError
from shared.models import ModelCard
from shared.types import Entry, Job, Plan, PlanSource, Request


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """The plan as it will really run, and where that starts."""

    plan: Plan
    start: Start


def start_of(plan: Plan, blob: bytes | None) -> Start:
    """Where the plan says the picture starts; `blob` is what lies under its state_key.

    Raises BlobCorruptError when the blob is not what the plan names, ModelError when it is missing.
    """
    if plan.source is PlanSource.NOISE or plan.start_step == 0:
        return FromNoise()
    if blob is None:
        raise ModelError(f"the plan starts from {plan.state_key!r}, which was not given")
    match plan.source:
        case PlanSource.LATENT:
            latent = decode_state(blob, plan.state_codec)
            return FromState(latent, plan.start_step, plan.fresh_noise, plan.noise_seed)
        case PlanSource.IMAGE:
            return FromPicture(decode_png(blob), plan.start_step)
        case _:
            raise ModelError(f"a picture cannot be drawn from a plan with source {plan.source.value!r}")


def task_of(task_id: str, request: Request, plan: Plan, start: Start) -> Task:
    """The engine's task for a request drawn as its plan says."""
    return Task(
        id=task_id,
        model=plan.model,
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        size=request.size,
        steps=request.steps,
        guidance=request.guidance,
        seed=request.seed,
        start=start,
        capture_steps=plan.capture_steps,
        priority=request.priority,
        drop_if_late=request.drop_if_late,
    )


def from_noise(plan: Plan, why: str, weights_hash: str) -> Plan:
    """The plan without its start, saying why."""
    return replace(
        plan,
        source=PlanSource.NOISE,
        start_step=0,
        entry_id="",
        state_key="",
        state_sha256="",
        state_codec="",
        fresh_noise=0.0,
        weights_hash=weights_hash,
        degraded=(*plan.degraded, why) if why else plan.degraded,
    )


def smaller_starts(plan: Plan, entry: Entry, card: ModelCard, request: Request, why: str) -> Iterator[Plan]:
    """The same entry's other states below the plan's K, largest first, for when its own is gone (a hole)."""
    if str(entry.compat) != str(card.compat(request.size, request.steps)):
        return
    at = {card.step_in(state.step, entry.compat.steps, request.steps): state for state in entry.states}
    for step in sorted((step for step in at if 0 < step < plan.start_step), reverse=True):
        yield replace(
            plan,
            start_step=step,
            state_key=at[step].key,
            state_sha256=at[step].sha256,
            state_codec=at[step].codec,
            degraded=(*plan.degraded, f"{why}; starts after {step} instead of {plan.start_step} steps"),
        )


async def prepare(job: Job, card: ModelCard, blobs: Blobs, entries: Entries) -> Prepared:
    """The job's plan, revalidated at claim (design §8): other weights are a miss, a missing or corrupt blob a hole.

    A job that was interrupted goes on from its own checkpoint.
    """
    if job.checkpoint_key and (resumed := await _resume(job, card, blobs)) is not None:
        return resumed
    plan = replace(job.plan, model=card.name)
    if plan.source is PlanSource.NOISE or plan.start_step == 0:
        return Prepared(replace(plan, weights_hash=card.weights_hash), FromNoise())
    if plan.source is PlanSource.LATENT and plan.weights_hash != card.weights_hash:
        return Prepared(from_noise(plan, "weights: changed since the plan was made", card.weights_hash), FromNoise())
    try:
        return Prepared(plan, start_of(plan, await blobs.get(plan.state_key, plan.state_sha256)))
    except (BlobMissingError, BlobCorruptError) as error:
        return await _smaller(job, plan, card, blobs, entries, f"blobs: {error}")


async def _resume(job: Job, card: ModelCard, blobs: Blobs) -> Prepared | None:
    """None when the checkpoint is not usable: then the plan is run from its start."""
    try:
        start, plan = decode_checkpoint(await blobs.get(job.checkpoint_key))
    except (BlobMissingError, BlobCorruptError):
        return None
    return Prepared(plan, start) if plan.weights_hash == card.weights_hash else None


async def _smaller(job: Job, plan: Plan, card: ModelCard, blobs: Blobs, entries: Entries, why: str) -> Prepared:
    noise = Prepared(from_noise(plan, f"{why}; drawn from noise", card.weights_hash), FromNoise())
    if plan.source is not PlanSource.LATENT:
        return noise
    try:
        entry = await entries.get(plan.entry_id)
    except NotFoundError:
        return noise
    for smaller in smaller_starts(plan, entry, card, job.request, why):
        try:
            return Prepared(smaller, start_of(smaller, await blobs.get(smaller.state_key, smaller.state_sha256)))
        except (BlobMissingError, BlobCorruptError):
            continue
    return noise
