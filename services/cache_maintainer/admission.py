"""Which finished pictures become cache entries, and with which of their states (NIRVANA §5.4, Insertion)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from shared.types import CacheMode, Entry, Job, JobState, PlanSource, State


def admit(job: Job) -> Entry | None:
    """The entry this job becomes, or None when it must not be kept.

    An entry without states answers exact repeats only: it is not in
    the index, and it goes with its job. States that nothing could find again (the prompt was never embedded) are left
    out. The entry's id is its job's, so that a fact heard twice makes one entry.
    """
    result = job.result
    if job.state is not JobState.SUCCEEDED or result is None or result.compat is None:
        return None
    if job.request.cache not in (CacheMode.AUTO, CacheMode.WRITE) or job.plan.source is PlanSource.EXACT:
        return None
    states = tuple(
        State(job.id, latent.step, latent.key, latent.bytes, latent.codec, latent.sha256)
        for latent in result.captured
        if job.vector and 0 < latent.step < job.request.steps
    )
    return Entry(
        id=job.id,
        job_id=job.id,
        prompt=job.request.prompt,
        tenant=job.request.tenant,
        user=job.request.user,
        scope=job.request.scope,
        model=result.model,
        compat=result.compat,
        exact_key=job.exact_key,
        picture_key=result.picture_key,
        picture_sha256=result.picture_sha256,
        encoder_hash=job.encoder_hash,
        created_at=0.0,  # the catalog's clock says when
        states=tuple(sorted(states, key=lambda state: state.step)),
    )


def fitting(entries: Sequence[Entry], max_bytes: int) -> list[Entry]:
    """The entries with only as many states as an empty cache of `max_bytes` could hold: a batch that is larger than
    the budget keeps the states that save the most steps."""
    kept = _largest(state for entry in entries for state in entry.states) if entries else []
    room, keys = max_bytes, set()
    for state in kept:
        if state.bytes <= room:
            room -= state.bytes
            keys.add(state.key)
    return [replace(entry, states=tuple(state for state in entry.states if state.key in keys)) for entry in entries]


def _largest(states: Iterable[State]) -> list[State]:
    return sorted(states, key=lambda state: (-state.step, state.bytes, state.key))
