"""Selects the finished images that become cache entries, and the states of each entry (NIRVANA §5.4; MoDM §A.6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from services.cache_maintainer.eviction.scored import Offer, Wish
from shared.domain.exact_repeats import entry_of
from shared.domain.types import PICTURE_CODEC, PICTURE_STEP, Entry, Job, PlanSource, Result, State


def admit(job: Job, *, picture: bool = False) -> Entry | None:
    """Return the entry that this job becomes, or None when the job must not be kept.

    With `picture`, the job's image may start others and becomes one of the states. An entry without states answers only
    exact repeats: it is not indexed, and is dropped with its job. If the prompt was never embedded, the latents are
    left out, because no lookup could find them. The entry's id is the job's id, so that a repeated event makes one
    entry.
    """
    entry, result = entry_of(job), job.result
    if entry is None or result is None:
        return None
    steps = job.plan.run_steps(job.request.steps)
    states = tuple(
        State(job.id, latent.step, latent.key, latent.bytes, latent.codec, latent.sha256)
        for latent in result.captured
        if job.vector and 0 < latent.step < steps
    )
    if picture and result.picture_key:
        states += (_picture(job.id, result),)
    return replace(entry, states=tuple(sorted(states, key=lambda state: state.step)))


def offer_of(entry: Entry, job: Job, at: float) -> Offer:
    """Return the entry's states and its lookup's candidates, as input for the policy.

    User names are scoped to the tenant.
    """
    latents, picture = entry.latents, entry.picture
    user = f"{entry.tenant}/{entry.user}" if entry.user else ""
    start = 0 if job.plan.source is PlanSource.IMAGE else job.plan.start_step
    stitched = job.plan.sources if job.plan.source is PlanSource.STITCHED else ()
    return Offer(
        entry.id,
        user,
        start,
        tuple(state.step for state in latents),
        tuple(state.bytes for state in latents),
        at,
        job.plan.run_steps(job.request.steps),
        [replace(one, steps=one.steps or job.request.steps) for one in job.plan.candidates if one.kind == "latent"],
        [Wish(one.entry_id, start, start) for one in stitched],
        picture.bytes if picture is not None else None,
        {state.step: state.needs for state in latents if state.needs},
    )


def _picture(entry_id: str, result: Result) -> State:
    """Return the image as a state; it names the job's own blob.

    The blob is deleted when neither the job nor the cache names it (docs/architecture.md, Blob ownership).
    """
    return State(entry_id, PICTURE_STEP, result.picture_key, result.picture_bytes, PICTURE_CODEC, result.picture_sha256)


def keeping(entry: Entry, steps: Sequence[int]) -> Entry:
    """Return the entry with only the states of these steps (PICTURE_STEP: the image). Without a latent there is nothing
    to stitch, and its masks stay with the job."""
    kept = replace(entry, states=tuple(state for state in entry.states if state.step in steps))
    return kept if kept.latents else replace(kept, mask=None)


def left_out(jobs: Sequence[Job], kept: Sequence[Entry]) -> list[str]:
    """Return the blob keys of captured latents that became no state of their job's entry."""
    stay = {state.key for entry in kept for state in entry.states}
    captured = [latent.key for job in jobs if job.result is not None for latent in job.result.captured]
    return [key for key in captured if key not in stay]
