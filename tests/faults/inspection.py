"""Reads off what a fault run left in catalog, index, blobs and broker, and draws every picture again."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache
from multiprocessing import get_context
from typing import Any, TypeVar

import sqlalchemy as sa
import torch
from sqlalchemy.ext.asyncio import create_async_engine

from scripts.stack.stack import PORTS, Stack, variable
from services.gpu_worker.families import Family, load_family
from services.gpu_worker.jobs.codecs import encode_png
from services.gpu_worker.jobs.stitching import mask_part, start_of_pair, state_part
from shared.catalog.tables import idempotency_keys
from shared.catalog.tables import jobs as jobs_table
from shared.domain.errors import AfterimageError
from shared.domain.types import Entry, Job, JobState, Plan, PlanSource, Request, from_json, to_json
from shared.models import find_card
from shared.runtime.settings import Settings
from shared.service.backends import Backends, open_backends
from tests.faults.cluster import INVARIANT
from tests.faults.verdict import Answer, Left
from tests.redraw import redraw

T = TypeVar("T")
V = TypeVar("V")
AT_ONCE = 8


@asynccontextmanager
async def outside(stack: Stack) -> AsyncIterator[Backends]:
    """What the stack's services see, seen from outside."""
    urls: Any = {port.setting: stack.environment[variable(port.setting)] for port in PORTS}
    backends = await open_backends(Settings(**urls))
    try:
        yield backends
    finally:
        await backends.close()


async def rest(backends: Backends, within_s: float) -> float:
    """Waits until every job has ended, is in the cache and was segmented, at most `within_s`; how long that took."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while loop.time() < begun + within_s:
        unfinished = [state for state in JobState if not state.final and await _some(backends, state)]
        jobs = backends.catalog.jobs
        if not unfinished and not await jobs.to_cache() and not await jobs.to_segment(1):
            break
        await asyncio.sleep(0.25)
    return loop.time() - begun


async def _some(backends: Backends, state: JobState) -> bool:
    jobs, _ = await backends.catalog.jobs.list(tenant=None, state=state, limit=1)
    return bool(jobs)


async def all_jobs(backends: Backends) -> list[Job]:
    found, after = [], ""
    while True:
        page, after = await backends.catalog.jobs.list(tenant=None, state=None, limit=500, after=after)
        found += page
        if not after:
            return found


async def inspect(
    backends: Backends,
    catalog_url: str,
    models: Mapping[str, str],
    answers: Mapping[str, Sequence[Answer]],
    *,
    redrawers: int = 1,
    interrupted_only: bool = False,
) -> tuple[Left, list[Job]]:
    """Everything that a verdict asks for, and the rows of all jobs. models: path by name. `interrupted_only`: jobs of a
    single attempt are not drawn again, but taken for what they are."""
    jobs = await all_jobs(backends)
    drawn = [job for job in jobs if job.state is JobState.SUCCEEDED]
    pictures = await _at_once(drawn, lambda job: _stored(backends, job))
    whole = {job.id: picture for job, picture in zip(drawn, pictures, strict=True) if picture}
    trusted = {job.id for job in drawn if interrupted_only and job.attempt <= 1}
    to_redraw = [job for job in drawn if job.id in whole.keys() - trusted]
    indexed = [entry_id async for page in backends.index.ids() for entry_id in page]
    entries = await _entries(backends)
    left = Left(
        answers=answers,
        job_of=await _job_of(catalog_url),
        states={job.id: job.state for job in jobs},
        pictures=whole,
        redrawn={job_id: whole[job_id] for job_id in trusted & whole.keys()}
        | await _redrawn(backends, to_redraw, models, redrawers),
        indexed=frozenset(indexed),
        named={entry.id: [key for key, _ in _blobs(entry)] for entry in entries},
        blobs=await _whole_blobs(backends, [entry for entry in entries if entry.id in set(indexed)]),
        uncached=await backends.catalog.jobs.to_cache(),
        unmasked=_unmasked(jobs, {entry.id: entry for entry in entries}, await unmasked_reasons(catalog_url)),
        dead_letters=len(await backends.bus.dead_letters()),
    )
    return left, jobs


async def unfindable(backends: Backends, within_s: float) -> tuple[list[str], list[str]]:
    """Entries with states that no search finds, now and after the maintainer had so long to bring them back."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within_s
    left = first = await _unfindable(backends)
    while left and loop.time() < end:
        await asyncio.sleep(2.0)
        left = await _unfindable(backends)
    return first, left


async def _unfindable(backends: Backends) -> list[str]:
    found: list[str] = []
    after = ""
    while ids := await backends.catalog.entries.live_ids(after, 1000):
        found += await backends.index.missing(ids)
        after = ids[-1]
    return sorted(found)


async def _entries(backends: Backends) -> list[Entry]:
    found, after = [], ""
    while True:
        page, after = await backends.catalog.entries.page(500, after)
        found += page
        if not after:
            return found


async def _job_of(catalog_url: str) -> dict[str, str]:
    """Every idempotency key's job: one row a key, which no client can read."""
    return await _column(catalog_url, idempotency_keys.c.key, idempotency_keys.c.job_id)


async def _column(catalog_url: str, key: sa.Column[str], value: sa.Column[str]) -> dict[str, str]:
    engine = create_async_engine(sa.make_url(catalog_url).difference_update_query(["pool"]))
    try:
        async with engine.connect() as connection:
            return {row[0]: row[1] for row in await connection.execute(sa.select(key, value))}
    finally:
        await engine.dispose()


async def _stored(backends: Backends, job: Job) -> str:
    """The hash of its picture; empty when that is not there, or is not what was stored."""
    assert job.result is not None
    return await _hash(backends, job.result.picture_key, job.result.picture_sha256)


async def _hash(backends: Backends, key: str, sha256: str) -> str:
    try:
        return hashlib.sha256(await backends.blobs.get(key, sha256)).hexdigest()
    except AfterimageError:
        return ""


def _blobs(entry: Entry) -> list[tuple[str, str]]:
    """Key and sha256 of every blob that the entry names."""
    masks = [] if entry.mask is None else [(entry.mask.key, entry.mask.sha256)]
    states = [(state.key, state.sha256) for state in entry.states]
    return [(entry.picture_key, entry.picture_sha256), *states, *masks]


async def unmasked_reasons(catalog_url: str) -> dict[str, str]:
    """Every job's reason for having no masks."""
    return await _column(catalog_url, jobs_table.c.id, jobs_table.c.unmasked)


def _unmasked(jobs: Sequence[Job], entries: Mapping[str, Entry], reasons: Mapping[str, str]) -> list[str]:
    """Jobs with both parts that have no masks, though no reason was noted and a latent of theirs could be stitched."""
    return [
        job.id
        for job in jobs
        if job.state is JobState.SUCCEEDED and job.plan.parts is not None and job.plan.parts.both
        if not reasons[job.id] and job.mask is None
        if (entry := entries.get(job.id)) is None or (entry.mask is None and entry.latents)
    ]


async def _whole_blobs(backends: Backends, entries: Sequence[Entry]) -> frozenset[str]:
    named = [blob for entry in entries for blob in _blobs(entry)]
    hashes = await _at_once(named, lambda pair: _hash(backends, *pair))
    return frozenset(key for (key, _), found in zip(named, hashes, strict=True) if found)


async def _at_once(items: Iterable[T], work: Callable[[T], Awaitable[V]]) -> list[V]:
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> V:
        async with limit:
            return await work(item)

    return await asyncio.gather(*(one(item) for item in items))


# ---- drawing again ----


async def _redrawn(
    backends: Backends, jobs: Sequence[Job], models: Mapping[str, str], redrawers: int
) -> dict[str, str]:
    """Each alone, from its request, its recorded plan and the state that this names; empty where one is missing.

    A single redrawer is a thread: another process would import torch first, which takes as long as a dozen pictures.
    """
    loop = asyncio.get_running_loop()
    pools: Executor = (
        ThreadPoolExecutor(1) if redrawers == 1 else ProcessPoolExecutor(redrawers, get_context("spawn"), _prepare)
    )
    with pools as pool:

        async def one(job: Job) -> str:
            plan = job.plan
            try:
                read = [await backends.blobs.get(one.key, one.sha256) for one in plan.sources]
                read += [
                    await backends.blobs.get(one.mask_key, one.mask_sha256) for one in plan.sources if one.mask_key
                ]
            except AfterimageError:
                return ""
            if plan.source is PlanSource.EXACT:  # the picture of the plan is a stored one
                return hashlib.sha256(read[0]).hexdigest()
            return await loop.run_in_executor(
                pool, _draw, models[plan.model], to_json(job.request), to_json(plan), read
            )

        pictures = await _at_once(jobs, one)
    return {job.id: picture for job, picture in zip(jobs, pictures, strict=True) if picture}


def _prepare() -> None:
    os.nice(5)
    torch.set_num_threads(1)


@cache
def _family(model: str) -> Family:
    return load_family(find_card(model), device="cpu", batch_invariant=INVARIANT)


def _draw(model: str, request: bytes, plan: bytes, read: Sequence[bytes]) -> str:
    """read: the plan's states, then the masks of a pair."""
    family, asked, planned = _family(model), from_json(Request, request), from_json(Plan, plan)
    start, blob = None, read[0] if read else None
    if planned.source is PlanSource.STITCHED:
        shape = family.latent_shape(asked.size, asked.frames)
        codecs = [source.codec for source in planned.sources]
        ours, theirs = (state_part(*one, shape) for one in zip(read, codecs, strict=False))
        thing, place = (mask_part(one, shape[1:]) for one in read[2:])
        start = start_of_pair(planned, ours, theirs, thing, place)
    drawn = redraw(family, asked, planned, blob, start)
    return hashlib.sha256(encode_png(drawn.pixels, family.card.frames.fps)).hexdigest()
