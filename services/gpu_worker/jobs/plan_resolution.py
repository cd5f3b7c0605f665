"""From a recorded plan to what the engine is given: revalidated, by a model that is here, with a smaller K where a blob
is gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from services.gpu_worker.engine.family import Family
from services.gpu_worker.engine.rows import FromCheckpoint, FromNoise, FromPicture, FromState, Start, Task
from services.gpu_worker.jobs import checkpoints
from services.gpu_worker.jobs.codecs import INLINE_BYTES, decode_checkpoint, decode_png, decode_state, fitted
from shared.blobs import Blobs
from shared.blobs.ahead import ReadAhead
from shared.catalog import Entries
from shared.domain.errors import AfterimageError, BlobCorruptError, BlobMissingError, ModelError, UnavailableError
from shared.domain.messages import StateLost
from shared.domain.plan_rules import DRAWN, choose_model, degrade, hand_over, revalidate, smaller_starts
from shared.domain.types import Entry, Job, Plan, PlanSource, Request, Size


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """The plan as it will really run, and where that starts."""

    plan: Plan
    start: Start
    family: Family | None
    """Who runs it; None: a model that is not here, and the plan says which."""
    lost: tuple[StateLost, ...] = ()
    """Holes found on the way that the catalog does not know of."""
    task: Task | None = None
    """The engine's task, named by the job; None without a family."""


def start_of(plan: Plan, blob: bytes | None, size: Size) -> Start:
    """Where the plan says a picture of this size starts; `blob` is what lies under its state_key.

    Raises BlobCorruptError when the blob is not what the plan names, ModelError when it is missing.
    """
    if plan.is_miss:
        return FromNoise()
    if blob is None:
        raise ModelError(f"the plan starts from {plan.state_key!r}, which was not given")
    match plan.source:
        case PlanSource.LATENT:
            latent = decode_state(blob, plan.state_codec)
            return FromState(latent, plan.start_step, plan.fresh_noise, plan.noise_seed)
        case PlanSource.IMAGE:
            return FromPicture(fitted(decode_png(blob), size), plan.start_step)
        case _:
            raise ModelError(f"a picture cannot be drawn from a plan with source {plan.source.value!r}")


def task_of(task_id: str, request: Request, plan: Plan, start: Start, **ride: Any) -> Task:
    """The engine's task for a request drawn as its plan says; `ride`: the Task's other fields."""
    return Task(
        id=task_id,
        model=plan.model,
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        size=request.size,
        steps=plan.run_steps(request.steps),
        guidance=plan.run_guidance(request.guidance),
        seed=request.seed,
        start=start,
        capture_steps=plan.capture_steps,
        priority=request.priority,
        drop_if_late=request.drop_if_late,
        **ride,
    )


async def prepare(
    job: Job,
    families: Mapping[str, Family],
    blobs: Blobs,
    entries: Entries,
    timeout_s: float = 5.0,
    ahead: ReadAhead | None = None,
    *,
    preferred: Collection[str] = (),
    assigned: Collection[str] | None = None,
) -> Prepared:
    """The job's plan, revalidated at claim (design §8): other weights are a miss, a missing or corrupt blob a hole.

    Whatever else a cache can do wrong (away, slow, of a shape or in a codec that nobody asked for) costs steps, never
    the request. A job that was interrupted goes on from its own checkpoint. families: the models that are here, by
    name; preferred: those of them that are to draw what several may; assigned: the models that some worker runs, None
    where any may be. timeout_s: limit of one read. ahead: a read that was begun before the claim.
    """
    ahead = ahead or ReadAhead(blobs)
    preparation = _Preparation(job, families, blobs, entries, timeout_s, ahead)
    prepared = await preparation.run(choose_model(job.plan, families, preferred), assigned)
    if prepared.family is None:
        return prepared
    return replace(prepared, task=task_of(job.id, job.request, prepared.plan, prepared.start))


@dataclass(slots=True)
class _Preparation:
    """One job's way down from its plan to what can really be started."""

    _job: Job
    _families: Mapping[str, Family]
    _blobs: Blobs
    _entries: Entries
    _timeout_s: float
    _ahead: ReadAhead
    _lost: list[str] = field(default_factory=list)
    """Keys of blobs that are gone or corrupt."""

    async def run(self, plan: Plan, assigned: Collection[str] | None) -> Prepared:
        """`plan`: the job's, by who takes it here."""
        job = self._job
        # one that names none may only have forgotten it
        if (job.checkpoint_key or job.attempt > 1) and (resumed := await self._resume()) is not None:
            return resumed
        family = self._families.get(plan.model)
        if family is None:
            return self._unstarted(hand_over(plan, assigned))
        plan = revalidate(plan, family.card.weights_hash)
        if plan.is_miss:
            return self._unstarted(plan)
        try:
            return Prepared(plan, await self._start(plan, family), family)
        except AfterimageError as error:
            return await self._degraded(plan, family, f"blobs: {error.outside}")

    def _unstarted(self, plan: Plan, lost: tuple[StateLost, ...] = ()) -> Prepared:
        """Prepare a miss, or any plan of a model that is not here."""
        family = self._families.get(plan.model)
        if family is not None:
            plan = revalidate(plan, family.card.weights_hash)
        return Prepared(plan, FromNoise(), family, lost)

    async def _start(self, plan: Plan, family: Family) -> Start:
        """Raises what the blob store raises; UnavailableError when it takes too long, BlobCorruptError for a start
        that does not fit the request."""
        try:
            blob = await self._read(plan.state_key, plan.state_sha256)
            size = self._job.request.size
            large = plan.source is PlanSource.IMAGE and max(len(blob), 3 * size.width * size.height) > INLINE_BYTES
            start = await asyncio.to_thread(start_of, plan, blob, size) if large else start_of(plan, blob, size)
            return self._fitting(start, plan, family, plan.state_key)
        except (BlobMissingError, BlobCorruptError):
            self._lost.append(plan.state_key)
            raise

    async def _read(self, key: str, sha256: str = "") -> bytes:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._ahead.get(key, sha256)
        except TimeoutError as error:
            raise UnavailableError(f"blob {key}: no answer in {self._timeout_s:g} s") from error

    def _fitting(self, start: Start, plan: Plan, family: Family, key: str) -> Start:
        size, steps = self._job.request.size, plan.run_steps(self._job.request.steps)
        match start:
            case FromState(latent=latent) | FromCheckpoint(latent=latent):
                found, needed = latent.shape, family.latent_shape(size)
                if found != needed:
                    raise BlobCorruptError(f"blob {key}: its latent is {found}, {size} needs {needed}")
            case FromPicture():
                pass  # made to fit
            case FromNoise():
                return start
        if not 0 < start.step < steps:
            raise ModelError(f"a run of {steps} steps cannot start after {start.step}")
        return start

    async def _resume(self) -> Prepared | None:
        """From the checkpoint that the row names, else from the furthest there is: a catalog server that was killed
        forgets what it had not synced yet, and then names one that is gone, or none. None when nothing is usable: then
        the plan is run from its start."""
        named = self._job.checkpoint_key
        try:
            if named and (resumed := await self._from(named)) is not None:
                return resumed
            for key in await self._checkpoints():
                if key != named and (resumed := await self._from(key)) is not None:
                    return resumed
        except AfterimageError:  # the store is away
            return None
        return None

    async def _from(self, key: str) -> Prepared | None:
        """None for a checkpoint that is gone, torn, or of other weights."""
        try:
            start, plan = decode_checkpoint(await self._read(key))
            if (family := self._families.get(plan.model)) is None:
                return None
            self._fitting(start, plan, family, key)
        except (BlobMissingError, BlobCorruptError, ModelError):
            return None
        return Prepared(plan, start, family) if plan.weights_hash == family.card.weights_hash else None

    async def _checkpoints(self) -> list[str]:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await checkpoints.furthest_first(self._blobs, self._job.id)
        except TimeoutError as error:
            raise UnavailableError(f"checkpoints of {self._job.id}: no answer in {self._timeout_s:g} s") from error

    async def _degraded(self, plan: Plan, family: Family, why: str) -> Prepared:
        entry = await self._entry(plan)
        if entry is not None and plan.source is PlanSource.LATENT:
            for smaller in smaller_starts(plan, entry, family.card, self._job.request, why):
                with contextlib.suppress(AfterimageError):
                    return Prepared(smaller, await self._start(smaller, family), family, self._told_lost(entry))
        return self._unstarted(lost=self._told_lost(entry), plan=degrade(plan, f"{why}{DRAWN}"))

    async def _entry(self, plan: Plan) -> Entry | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._entries.get(plan.entry_id)
        except (AfterimageError, TimeoutError):  # gone, or the catalog is away
            return None

    def _told_lost(self, entry: Entry | None) -> tuple[StateLost, ...]:
        """What the catalog still names although it is gone: states under the K of their own run, step 0 a picture."""
        if entry is None:
            return ()
        steps = {state.key: state.step for state in entry.states} | {entry.picture_key: 0}
        return tuple(StateLost(entry.id, steps[key], key) for key in self._lost if key in steps)
