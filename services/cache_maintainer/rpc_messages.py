"""gRPC messages of the maintainer: a purge request as a filter, counts and entries as responses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from protos import cache_maintainer_pb2 as pb
from protos import common_pb2
from services.cache_maintainer.cache_writes import Cache
from services.cache_maintainer.contents import CacheContents
from services.cache_maintainer.erasing import Erased
from shared.catalog import Entries, Totals
from shared.catalog.erasing import Erasing
from shared.domain.errors import InvalidRequestError
from shared.domain.ids import is_id
from shared.domain.types import Entry, State
from shared.models.live_checks import Checks

PAGE = 100
"""Largest page of Inspect, in entries."""


def stats(cache: Cache, totals: Totals, max_bytes: int) -> pb.StatsResponse:
    states, window = list(cache.shelf), cache.pictures
    uses: Counter[int] = Counter()
    for state in states:
        uses[state.step] += state.uses
    return pb.StatsResponse(
        entries=totals.entries,
        states=totals.states,
        bytes=totals.bytes,
        max_bytes=max_bytes,
        policy=cache.shelf.policy.name,
        inserted=cache.counts.inserted,
        evicted=cache.counts.evicted,
        holes=cache.counts.holes,
        states_by_step=Counter(state.step for state in states),
        uses_by_step=uses,
        pictures=totals.pictures,
        picture_bytes=totals.picture_bytes,
        max_pictures=window.limits.max_count if window is not None else 0,
        max_picture_bytes=window.limits.max_bytes if window is not None else 0,
        picture_policy=window.shelf.policy.name if window is not None else "off",
    )


def checked_cells(records: Mapping[str, Checks]) -> Iterator[pb.CheckedCell]:
    """Yield the cells of each model: all hits, then each relation, source and K."""
    for model, checks in records.items():
        for cell in (checks.all, *sorted(checks.cells, key=lambda cell: cell.place)):
            yield pb.CheckedCell(
                model=model,
                relation=cell.relation,
                source=cell.source,
                steps=cell.steps,
                start_step=cell.start_step,
                checks=cell.checks,
                fails=cell.fails,
                ratios={name: _ratio(*sums.ratio(cell.checks)) for name, sums in cell.sums.items()},
                stopped_at=cell.stopped_at,
            )


def _ratio(value: float, low: float, high: float) -> pb.Ratio:
    return pb.Ratio(value=value, low=low, high=high) if math.isfinite(low) else pb.Ratio(value=value)


async def wanted(request: pb.PurgeRequest, entries: Entries) -> Callable[[Entry], bool]:
    match request.WhichOneof("what"):
        case "entry_id":
            only = await entries.get(request.entry_id)
            return lambda entry: entry.id == only.id
        case "tenant":
            return lambda entry: entry.tenant == request.tenant
        case "model":
            return lambda entry: entry.model == request.model
        case "everything" if request.everything:
            return lambda entry: True
    raise InvalidRequestError(
        "what", "must be exactly one of entry_id, tenant, model or everything=true (got none); set one of them"
    )


async def jobs_to_erase(request: pb.EraseRequest, erasing: Erasing) -> list[str]:
    """Return the ids of the jobs. Raises InvalidRequestError for a request that names none."""
    match request.WhichOneof("what"):
        case "job_id" if is_id(request.job_id):
            return [request.job_id]
        case "job_id":
            raise InvalidRequestError("job_id", "must be the id of a job", request.job_id[:100])
        case "user" if request.user and request.tenant:
            return await erasing.owned(request.tenant, request.user)
        case "whole_tenant" if request.whole_tenant and request.tenant:
            return await erasing.owned(request.tenant, None)
    raise InvalidRequestError("what", "must be a job_id, or a user or whole_tenant=true with their tenant (got none)")


def target_of(request: pb.EraseRequest) -> str:
    """Return what is erased, for the audit log."""
    match request.WhichOneof("what"):
        case "job_id":
            return f"job {request.job_id}"
        case "user":
            return f"user {request.user} of tenant {request.tenant}"
    return f"tenant {request.tenant}"


def erasure(erased: Erased) -> common_pb2.Erasure:
    removed = (common_pb2.Removed(kind=kind, count=of[0], bytes=of[1]) for kind, of in erased.removed.items() if of[0])
    return common_pb2.Erasure(removed=removed, left=erased.left)


def shown(entry: Entry, contents: CacheContents) -> pb.Entry:
    return pb.Entry(
        id=entry.id,
        prompt=entry.prompt,
        tenant=entry.tenant,
        model=entry.model,
        width=entry.compat.size.width,
        height=entry.compat.size.height,
        steps=entry.compat.steps,
        created_at=entry.created_at,
        states=[_shown_state(state, contents) for state in entry.latents],
        picture=_shown_state(entry.picture, contents) if entry.picture is not None else None,
    )


def _shown_state(state: State, contents: CacheContents) -> pb.State:
    score = contents.score(state)
    return pb.State(step=state.step, bytes=state.bytes, uses=state.uses, codec=state.codec, score=score)
