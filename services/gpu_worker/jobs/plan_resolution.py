"""Plan resolution at claim: revalidate the recorded plan, choose a loaded model, and take a smaller K if a blob is
gone."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

from services.gpu_worker.engine.family import Family
from services.gpu_worker.engine.rows import FromCheckpoint, FromNoise, FromPicture, FromState, Kept, Pixels, Start, Task
from services.gpu_worker.jobs import checkpoints
from services.gpu_worker.jobs.codecs import INLINE_BYTES, decode_checkpoint, needed_by
from services.gpu_worker.jobs.outputs import state_key_beside
from services.gpu_worker.jobs.regions import with_region
from services.gpu_worker.jobs.starts import kept_of, lead_of, start_of, task_of
from services.gpu_worker.jobs.stitching import mask_part, start_of_pair, state_part
from shared.blobs import Blobs
from shared.blobs.ahead import ReadAhead
from shared.catalog import Entries
from shared.domain.errors import (
    AfterimageError,
    BlobCorruptError,
    BlobMissingError,
    ModelError,
    UnavailableError,
    passes,
)
from shared.domain.masks import MASK_STEP
from shared.domain.messages import StateLost
from shared.domain.plan_rules import DRAWN, choose_model, degrade, hand_over, revalidate, smaller_starts, whole_start
from shared.domain.types import PICTURE_STEP, Entry, Job, Lead, Plan, PlanSource, Request, Upload


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """The plan as it will be run, and its start."""

    plan: Plan
    start: Start
    family: Family | None
    """Family that runs the plan; None: the plan names a model that this worker has not loaded."""
    lost: tuple[StateLost, ...] = ()
    """Holes found here that the catalog still lists as states."""
    task: Task | None = None
    """The engine's task, whose id is the job's; None without a family."""
    lead: Pixels | None = None
    """Finished frames with which the clip begins, (F, height, width, 3); see Lead."""


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
    """Resolve the job's plan at claim (docs/architecture.md, Delivery rules): a plan for other weights becomes a miss,
    and a missing or corrupt blob is a hole.

    Any other failure of the cache costs steps and never the request: a store that is away or slow, a wrong shape, a
    codec that was not asked for. Only a request that names its start fails without it. An interrupted job resumes from
    its own checkpoint.

    families: loaded models by name; preferred: models to prefer for plans that several models may run; assigned: models
    that some worker runs, None if unknown. timeout_s: limit of one read. ahead: a read that was begun before the claim.
    """
    ahead = ahead or ReadAhead(blobs)
    preparation = _Preparation(job, families, blobs, entries, timeout_s, ahead)
    prepared = await preparation.run(choose_model(job.plan, families, preferred), assigned)
    if prepared.family is None:
        return prepared
    prepared = await preparation.with_region(prepared)
    task = task_of(job.id, job.request, prepared.plan, prepared.start)
    if (upload := job.request.upload) is not None and upload.masked:
        task = replace(task, kept=await preparation.read_kept(upload))
    if (lead := prepared.plan.lead) is None:
        return replace(prepared, task=task)
    frames = await preparation.read_lead(lead)
    return replace(prepared, task=replace(task, held=frames[-lead.held :]), lead=frames)


def _raise_unusable(request: Request, error: AfterimageError) -> NoReturn:
    """Raise the error itself if the task may wait until it passes, else one that names the lost source."""
    if passes(error):
        raise error
    named = f"{request.named_in} {request.named_job!r}: its result" if request.named_job else "image:"
    raise AfterimageError(f"{named} cannot be used: {error.outside}") from error


@dataclass(slots=True)
class _Preparation:
    """The resolution of one job's plan, from the recorded plan to a start that exists."""

    _job: Job
    _families: Mapping[str, Family]
    _blobs: Blobs
    _entries: Entries
    _timeout_s: float
    _ahead: ReadAhead
    _lost: list[str] = field(default_factory=list)
    """Keys of blobs that are gone or corrupt."""

    async def run(self, plan: Plan, assigned: Collection[str] | None) -> Prepared:
        """Resolve `plan`, which is the job's plan with the model chosen here."""
        job = self._job
        # a row without a checkpoint key may have lost it (see _resume)
        if (job.checkpoint_key or job.attempt > 1) and (resumed := await self._resume()) is not None:
            return resumed
        family = self._families.get(plan.model)
        if family is None:
            return self._unstarted(hand_over(plan, assigned))
        plan = revalidate(plan, family.card.weights_hash, family.card.reuse_key)
        if plan.is_miss:
            return self._unstarted(plan)
        try:
            return Prepared(plan, await self._start(plan, family), family)
        except AfterimageError as error:
            if job.request.names_start:  # an image from noise would not be what the client asked for
                _raise_unusable(job.request, error)
            return await self._degraded(plan, family, f"blobs: {error.outside}")

    def _unstarted(self, plan: Plan, lost: tuple[StateLost, ...] = ()) -> Prepared:
        """Prepare a miss, or any plan of a model that is not loaded."""
        family = self._families.get(plan.model)
        if family is not None:
            plan = revalidate(plan, family.card.weights_hash, family.card.reuse_key)
        return Prepared(plan, FromNoise(), family, lost)

    async def _start(self, plan: Plan, family: Family) -> Start:
        """Read and decode the plan's start. Raises what the blob store raises; UnavailableError when the read exceeds
        `timeout_s`, BlobCorruptError for a latent that does not fit the request. A clip of another length raises
        ModelError: its blob is sound, and must not count as lost."""
        if plan.source is PlanSource.STITCHED:
            return await self._start_pair(plan, family)
        try:
            blob = await self._read(plan.state_key, plan.state_sha256)
            base = await self._read_base(plan.state_key, plan.state_codec, blob)
            size, frames = self._job.request.size, self._job.request.frames
            image = plan.source in (PlanSource.IMAGE, PlanSource.UPLOAD)
            decoded = (
                3 * frames * size.width * size.height if image else 4 * math.prod(family.latent_shape(size, frames))
            )
            large = max(len(blob), decoded) > INLINE_BYTES
            given = plan, blob, size, base
            start = await asyncio.to_thread(start_of, *given) if large else start_of(*given)
            return self._fitting(start, plan, family, plan.state_key)
        except (BlobMissingError, BlobCorruptError):
            self._lost.append(plan.state_key)
            raise

    async def _read_base(self, key: str, codec: str, blob: bytes) -> bytes:
        """Read the state that the state under this key needs; empty if it needs none. A missing one is a hole, like its
        dependants (FlexCache §4.3)."""
        if (base := needed_by(blob, codec)) is None:
            return b""
        beside = state_key_beside(key, base.step)
        try:
            return await self._read(beside, base.sha256)
        except (BlobMissingError, BlobCorruptError):
            self._lost.append(beside)
            raise

    async def _start_pair(self, plan: Plan, family: Family) -> Start:
        """Read both states, their bases and both masks, and stitch them (FlexCache §4.2.2). Raises as `_start` does,
        once every lost blob is noted."""
        sources = plan.sources
        if len(sources) != 2:
            raise ModelError(f"a stitched plan must name two sources (got {len(sources)})")
        shape = family.latent_shape(self._job.request.size, self._job.request.frames)
        grid = shape[1:] if len(shape) == 4 else (1, *shape[1:])
        state = partial(state_part, shape=shape)
        parts: list[Any] = await asyncio.gather(
            *(self._part(one.key, one.sha256, partial(state, codec=one.codec), one.codec) for one in sources),
            *(self._part(one.mask_key, one.mask_sha256, partial(mask_part, shape=grid)) for one in sources),
            return_exceptions=True,
        )
        if failed := [one for one in parts if isinstance(one, BaseException)]:
            raise failed[0]
        return self._fitting(start_of_pair(plan, *parts), plan, family, plan.state_key)

    async def _part(self, key: str, sha256: str, decode: Callable[..., Any], codec: str = "") -> Any:
        """Read and decode one blob of a pair, a state with its base; note its key where it is gone or corrupt."""
        try:
            blob = await self._read(key, sha256)
            base = await self._read_base(key, codec, blob)
            return await asyncio.to_thread(partial(decode, base=base) if base else decode, blob)
        except (BlobMissingError, BlobCorruptError):
            self._lost.append(key)
            raise

    async def with_region(self, prepared: Prepared) -> Prepared:
        """Return the start with the image whose unchanged patches it holds, if the plan names one."""
        lost = list(prepared.lost)

        async def read(key: str, sha256: str) -> bytes:
            try:
                return await self._read(key, sha256)
            except (BlobMissingError, BlobCorruptError):
                if key:
                    lost.append(StateLost(prepared.plan.first_source.entry_id, PICTURE_STEP, key))
                raise

        runs_patches = prepared.family is not None and prepared.family.region_side > 0
        plan, start = await with_region(prepared.plan, prepared.start, runs_patches, read)
        return replace(prepared, plan=plan, start=start, lost=tuple(lost))

    async def read_lead(self, lead: Lead) -> Pixels:
        """Read and decode the frames with which the clip begins. Raises an error that names the lost job."""
        try:
            blob = await self._read(lead.key, lead.sha256)
            return await asyncio.to_thread(lead_of, lead, blob, self._job.request.size)
        except AfterimageError as error:
            _raise_unusable(self._job.request, error)

    async def read_kept(self, upload: Upload) -> Kept:
        """Read and decode the uploaded image with its mask. Raises an error that names the lost image."""
        try:
            blob = await self._read(upload.key, upload.sha256)
            return await asyncio.to_thread(kept_of, upload, blob, self._job.request.size)
        except AfterimageError as error:
            _raise_unusable(self._job.request, error)

    async def _read(self, key: str, sha256: str = "") -> bytes:
        if not key:
            raise BlobMissingError("its source was erased")
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._ahead.get(key, sha256)
        except TimeoutError as error:
            raise UnavailableError(f"blob {key}: the store did not answer within {self._timeout_s:g} s") from error

    def _fitting(self, start: Start, plan: Plan, family: Family, key: str) -> Start:
        request, steps = self._job.request, plan.run_steps(self._job.request.steps)
        match start:
            case FromState(latent=latent) | FromCheckpoint(latent=latent):
                found, needed = latent.shape, family.latent_shape(request.size, request.frames)
                if found != needed:
                    raise BlobCorruptError(
                        f"blob {key}: the latent of a {request.size} request must have shape {needed} (got {found})"
                    )
            case FromPicture(pixels=pixels):  # `start_of` resizes it to the request's size
                if pixels.ndim == 4 and len(pixels) != request.frames:
                    # the blob is whole, and BlobCorruptError would mark it as lost for requests that it fits
                    raise ModelError(f"blob {key}: a clip must have {request.frames} frames (got {len(pixels)})")
            case FromNoise():
                return start
        if not 0 < start.step < steps:
            raise ModelError(
                f"start_step must be between 1 and {steps - 1} for a run of {steps} steps (got {start.step})"
            )
        return start

    async def _resume(self) -> Prepared | None:
        """Resume from the checkpoint that the row names, else from the furthest one in the store. A killed catalog
        server loses what it had not synced: its row then names a deleted checkpoint, or none. None when no checkpoint
        is usable; the plan then runs from its start."""
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
        """Resume from this checkpoint; None when it is gone, torn, or of other weights or reuse between steps."""
        try:
            blob = await self._read(key)
            inline = len(blob) <= INLINE_BYTES
            start, plan = decode_checkpoint(blob) if inline else await asyncio.to_thread(decode_checkpoint, blob)
            if (family := self._families.get(plan.model)) is None:
                return None
            self._fitting(start, plan, family, key)
        except (BlobMissingError, BlobCorruptError, ModelError):
            return None
        own = family.card.weights_hash, family.card.reuse_key
        return Prepared(plan, start, family) if (plan.weights_hash, plan.step_reuse) == own else None

    async def _checkpoints(self) -> list[str]:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await checkpoints.furthest_first(self._blobs, self._job.id)
        except TimeoutError as error:
            raise UnavailableError(
                f"checkpoints of {self._job.id}: the store did not answer within {self._timeout_s:g} s"
            ) from error

    async def _degraded(self, plan: Plan, family: Family, why: str) -> Prepared:
        entries = await self._entries_of(plan)
        if plan.source is PlanSource.LATENT and plan.entry_id in entries:
            for smaller in smaller_starts(plan, entries[plan.entry_id], family.card, self._job.request, why):
                with contextlib.suppress(AfterimageError):
                    return Prepared(smaller, await self._start(smaller, family), family, self._told_lost(entries))
        if plan.source is PlanSource.STITCHED and (whole := whole_start(plan, why)) is not None:
            with contextlib.suppress(AfterimageError):
                return Prepared(whole, await self._start(whole, family), family, self._told_lost(entries))
        return self._unstarted(lost=self._told_lost(entries), plan=degrade(plan, f"{why}{DRAWN}"))

    async def _entries_of(self, plan: Plan) -> dict[str, Entry]:
        """Return the entries that the plan, or its fallback, starts from; none while the catalog is away."""
        both = (plan, plan.fallback) if plan.fallback is not None else (plan,)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._entries.by_ids(sorted({one.entry_id for each in both for one in each.sources}))
        except (AfterimageError, TimeoutError):
            return {}

    def _told_lost(self, entries: Mapping[str, Entry]) -> tuple[StateLost, ...]:
        """Return the lost blobs that the catalog still lists: a state under the K of its own run, an image under step
        0, masks under step −1."""
        named = {state.key: (entry.id, state.step) for entry in entries.values() for state in entry.states}
        named |= {entry.picture_key: (entry.id, PICTURE_STEP) for entry in entries.values()}
        named |= {entry.mask.key: (entry.id, MASK_STEP) for entry in entries.values() if entry.mask is not None}
        return tuple(StateLost(*named[key], key) for key in self._lost if key in named)
