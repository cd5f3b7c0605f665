"""Which finished pictures become cache entries, and with which of their states (NIRVANA §5.4; MoDM §A.6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from services.cache_maintainer.eviction.scored import Offer
from shared.domain.exact_repeats import entry_of
from shared.domain.types import PICTURE_CODEC, PICTURE_STEP, Entry, Job, PlanSource, Result, State


def admit(job: Job, *, picture: bool = False) -> Entry | None:
    """The entry this job becomes, or None when it must not be kept.

    `picture`: whether its picture may start others too; then it is one of its states. An entry without states answers
    exact repeats only: it is not in the index, and it goes with its job. Latents that nothing could find again (the
    prompt was never embedded) are left out. The entry's id is its job's, so that a fact heard twice makes one entry.
    """
    entry, result = entry_of(job), job.result
    if entry is None or result is None:
        return None
    states = tuple(
        State(job.id, latent.step, latent.key, latent.bytes, latent.codec, latent.sha256)
        for latent in result.captured
        if job.vector and 0 < latent.step < job.request.steps
    )
    if picture and result.picture_key:
        states += (_picture(job.id, result),)
    return replace(entry, states=tuple(sorted(states, key=lambda state: state.step)))


def offer_of(entry: Entry, job: Job, at: float) -> Offer:
    """Its states and what its lookup thought of each entry's latents, for the policy. The user is one tenant's."""
    latents, picture = entry.latents, entry.picture
    user = f"{entry.tenant}/{entry.user}" if entry.user else ""
    start = 0 if job.plan.source is PlanSource.IMAGE else job.plan.start_step
    return Offer(
        entry.id,
        user,
        start,
        tuple(state.step for state in latents),
        tuple(state.bytes for state in latents),
        at,
        job.request.steps,
        [one for one in job.plan.candidates if one.kind == "latent"],
        picture.bytes if picture is not None else None,
    )


def _picture(entry_id: str, result: Result) -> State:
    """The job's own blob: it goes when neither the job nor the cache names it (design §2, Who owns what)."""
    return State(entry_id, PICTURE_STEP, result.picture_key, result.picture_bytes, PICTURE_CODEC, result.picture_sha256)


def keeping(entry: Entry, steps: Sequence[int]) -> Entry:
    """The entry with those of its states that are kept (PICTURE_STEP: its picture)."""
    return replace(entry, states=tuple(state for state in entry.states if state.step in steps))


def left_out(jobs: Sequence[Job], kept: Sequence[Entry]) -> list[str]:
    """Blobs of latents that became no state of their job's entry."""
    stay = {state.key for entry in kept for state in entry.states}
    captured = [latent.key for job in jobs if job.result is not None for latent in job.result.captured]
    return [key for key in captured if key not in stay]
