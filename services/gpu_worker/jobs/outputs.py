"""The blobs of one attempt: its image, the states that it captures for the cache, and its crash checkpoints."""

from __future__ import annotations

import asyncio
import math

from services.gpu_worker.engine.events import Checkpointed, LatentCaptured
from services.gpu_worker.engine.rows import Latent, Pixels
from services.gpu_worker.jobs import checkpoints, keyframes
from services.gpu_worker.jobs.codecs import INLINE_BYTES, encode_checkpoint, encode_png, encode_run, encode_state
from services.gpu_worker.jobs.state_codecs import StateCodecs
from shared.domain.errors import AfterimageError
from shared.domain.types import Captured, Job, Plan
from shared.models import ModelCard
from shared.runtime.telemetry import log
from shared.service.backends import Backends

_PICTURE_KEY = "pictures/{}-{}.png"
_STATE_KEY = "states/{}-{}-{}.safetensors"
HEADER_BYTES = 128
"""Bytes of a state in fp16 besides its values, at most."""


def state_key_beside(key: str, step: int) -> str:
    """Return the key of the state after `step` steps that was stored with the state of this key."""
    return f"{key.rpartition('-')[0]}-{step}.safetensors"


class Outputs:
    """The keys of an attempt's blobs carry the job, the attempt and, except for the image, the step: two attempts never
    write the same blob."""

    def __init__(self, backends: Backends, job: Job, codecs: StateCodecs, *, fp16_states: float = math.inf) -> None:
        """fp16_states: room for this image's states, where `codecs` chooses their codec."""
        self._jobs, self._blobs = backends.catalog.jobs, backends.blobs
        self._job, self._codecs = job, codecs
        self._fp16_states = fp16_states if codecs.chosen else math.inf
        self._state_bytes = 0
        self.picture_key = _PICTURE_KEY.format(job.id, job.attempt)
        self._captures: list[asyncio.Task[list[Captured]]] = []
        self._together: dict[int, Latent] = {}
        """States by K that are encoded together once the run has ended."""
        self._saving: asyncio.Task[None] | None = None
        self._written = [job.checkpoint_key] if job.checkpoint_key else []
        """Checkpoints that are deleted when the job ends."""

    def capture(self, event: LatentCaptured, card: ModelCard, steps: int) -> None:
        """Store a state of a run of `steps` for the cache, in the background."""
        self._captures.append(asyncio.create_task(self._capture(event, card, steps)))

    def checkpoint(self, event: Checkpointed, plan: Plan) -> None:
        """Store a checkpoint in the background, after the previous one, so that the row ends with the newest
        checkpoint."""
        self._saving = asyncio.create_task(self._checkpoint(event, plan, self._saving))

    async def put_picture(self, pixels: Pixels, fps: float) -> tuple[int, str]:
        """Store the image as PNG, a clip as animated PNG; return its size in bytes and its sha256. Raises what the blob
        store raises."""
        small = pixels.nbytes <= INLINE_BYTES
        picture = encode_png(pixels, fps) if small else await asyncio.to_thread(encode_png, pixels, fps)
        return len(picture), await self._blobs.put(self.picture_key, picture)

    async def captured(self) -> tuple[Captured, ...]:
        """The states that were stored, by step. A state that could not be stored is a hole, not a failed image."""
        kept = list[Captured]()
        stored = await asyncio.gather(*self._captures, return_exceptions=True)
        if self._together:
            self._captures.append(asyncio.create_task(self._store_together(self._together)))
            self._together = {}
            stored += await asyncio.gather(self._captures[-1], return_exceptions=True)
        for outcome in stored:
            if isinstance(outcome, BaseException):
                log("gpu_worker").warning("state not stored", job=self._job.id, error=str(outcome))
            else:
                kept += outcome
        return tuple(sorted(kept, key=lambda state: state.step))

    async def clean_up(self, *, succeeded: bool, ended: bool) -> None:
        """Delete the checkpoints of a job that ended, and all blobs of an attempt that did not succeed. An upload stays
        until the job succeeds, since a failed job can be replayed. The collector deletes what stays."""
        if self._saving is not None:
            await self._saving
        try:
            keys = await self._checkpoints() if ended else []
            if succeeded and self._job.request.upload is not None:
                keys.append(self._job.request.upload.key)
            if not succeeded:
                self._together = {}
                keys += [self.picture_key, *(state.key for state in await self.captured())]
            if keys:
                await self._blobs.delete(keys)
        except AfterimageError as error:
            log("gpu_worker").warning("blobs left to the collector", job=self._job.id, error=str(error))

    async def _capture(self, event: LatentCaptured, card: ModelCard, steps: int) -> list[Captured]:
        """Store the state, unless it waits for others of its run, or does not fit into the image's room. States come in
        ascending K, and a state at K serves every request that may start at K or later: so the first K go first."""
        codec = await self._codecs.at(card, event.step, steps)
        if codec == keyframes.NAME:
            self._together[event.step] = event.latent
            return []
        given = event.latent, codec, event.noises, card.frames.windows(self._job.request.frames)
        inline = event.latent.nbytes <= INLINE_BYTES
        data = encode_state(*given) if inline else await asyncio.to_thread(encode_state, *given)
        return await self._put_state(event.step, data, codec, event.latent.size)

    async def _store_together(self, latents: dict[int, Latent]) -> list[Captured]:
        """Store the states of codec `keyframes`. The one that others need comes first: without it, none is stored. Any
        other that the store refuses is a hole."""
        stored, size = list[Captured](), next(iter(latents.values())).size
        for step, (data, codec) in (await asyncio.to_thread(encode_run, latents, self._codecs.keyframes)).items():
            try:
                put = await self._put_state(step, data, codec, size)
            except AfterimageError as error:
                if not stored:
                    raise
                log("gpu_worker").warning("state not stored", job=self._job.id, step=step, error=str(error))
                continue
            if not put and not stored:
                break
            stored += put
        return stored

    async def _put_state(self, step: int, data: bytes, codec: str, values: int) -> list[Captured]:
        """Store a state of this many values; none if it does not fit into the image's room."""
        if self._state_bytes + len(data) > self._fp16_states * (2 * values + HEADER_BYTES):
            return []
        self._state_bytes += len(data)
        key = _STATE_KEY.format(self._job.id, self._job.attempt, step)
        sha256 = await self._blobs.put(key, data, durable=False)
        return [Captured(step, key, len(data), codec, sha256)]

    async def _checkpoint(self, event: Checkpointed, plan: Plan, before: asyncio.Task[None] | None) -> None:
        """Store the blob, name it on the row, then delete the previous checkpoint. A failure costs only the checkpoint.

        A killed catalog server may lose the name; the next attempt finds the blob by its key.
        """
        if before is not None:
            await before
        key = checkpoints.key_of(self._job.id, self._job.attempt, event.step)
        old, self._written = self._written, [*self._written, key]
        try:
            given = event.latent, event.step, event.generator_state, plan, event.noises, event.previous, event.anew
            inline = event.latent.nbytes <= INLINE_BYTES
            data = encode_checkpoint(*given) if inline else await asyncio.to_thread(encode_checkpoint, *given)
            await self._blobs.put(key, data, durable=False)
            if await self._jobs.checkpoint(self._job.id, self._job.attempt, key, event.step):
                await self._blobs.delete(old)
                self._written = [key]
        except Exception as error:
            log("gpu_worker").warning("checkpoint not written", job=self._job.id, error=repr(error))

    async def _checkpoints(self) -> list[str]:
        """Return the keys of this attempt's checkpoints and of earlier attempts': a killed worker may have left some
        that no row names."""
        left = await checkpoints.all_of(self._blobs, self._job.id) if self._job.attempt > 1 else []
        return sorted({*self._written, *left})
