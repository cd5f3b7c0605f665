"""Live checks: while no job waits, generate a few hits again from noise, and compare both images."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import deque
from dataclasses import replace

from protos import embedder_pb2 as pb
from protos.embedder_pb2_grpc import EmbedderServiceStub
from shared.catalog.jobs.checks import CHECKS
from shared.domain.errors import BlobCorruptError, BlobMissingError, InvalidRequestError, NotFoundError
from shared.domain.ids import new_id
from shared.domain.messages import JobCancelled, lane_of
from shared.domain.plan_rules import noise_plan
from shared.domain.types import CacheMode, Job, JobState, Modality, PlanSource, Result, vector_from
from shared.models.card_lookup import served_cards
from shared.models.live_checks import KIND, Checks, checks_from_json, checks_to_json, failures, newly_stopped
from shared.models.quality import Measures
from shared.runtime import rpc
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS, log
from shared.service import Context
from shared.service.backends import Backends
from shared.service.dispatch import dispatch

EVERY_S = 1.0
"""Seconds between two looks for a hit to check."""
POLL_S = 0.5
"""Seconds between reads of a check's row, since its event may be lost."""
LIMIT_S = 600.0
"""Longest time of one check in seconds."""
REMEMBERED = 64
"""Sampled hits that wait for idle capacity. Beyond this number, the oldest are not checked."""
TIMEOUT_S = 30.0
HITS = (PlanSource.LATENT, PlanSource.IMAGE)


class LiveChecks:
    """At most one check at a time. A check's job ends as soon as a client's job waits; its hit is tried again later."""

    def __init__(self, context: Context, backends: Backends) -> None:
        self._settings, self._clock, self._backends = context.settings, context.clock, backends
        self._sampled: deque[str] = deque(maxlen=REMEMBERED)
        self._open, self._ended = "", asyncio.Event()
        self._early = self._shown = False
        self._recording = asyncio.Lock()  # a reset between the read and the write of a record would be lost
        self._context = context
        self._embeds = bool(context.addresses("embedder"))  # else no prompt has a vector, so there is no hit

    def finished(self, job_id: str) -> bool:
        """Return whether the job is the open check; sample the others by their id."""
        if job_id == self._open:
            self._ended.set()
            return True
        if self._embeds and hash_share(job_id) < self._settings.check_share:
            self._sampled.append(job_id)
        return False

    async def queued(self) -> None:
        """End the open check if this job of a client may have to wait for it."""
        running = self._backends.catalog.process_local  # one process, so the check takes a share of its processors
        if self._open and (running or await self._backends.catalog.jobs.busy(running=False)):
            self._early = True
            await self._end(self._open)

    async def check_waiting(self) -> None:
        """Check the sampled hits, newest first, until none is left or a client's job waits."""
        if not self._shown:
            await self.records("", reset=False)
            self._shown = True
        await self.end_all()
        while self._sampled and not await self._busy():
            job_id = self._sampled.pop()
            with contextlib.suppress(NotFoundError, BlobMissingError, BlobCorruptError):  # expired: nothing to compare
                hit = await self._backends.catalog.jobs.get(job_id)
                if _checkable(hit) and not await self._check(hit):
                    self._sampled.appendleft(job_id)
                    return

    async def end_all(self) -> None:
        """Delete the jobs of all checks: their requests are copies of clients' requests."""
        for job_id in await self._backends.catalog.jobs.left_checks():
            await self._end(job_id)

    async def records(self, model: str, *, reset: bool) -> dict[str, Checks]:
        """Return the checks by model: of the served models, or of one. `reset`: drop them first."""
        found, profiles = {}, self._backends.catalog.profiles
        for name, weights in (await asyncio.to_thread(_weights, model, self._settings)).items():
            async with self._recording:
                if reset:
                    await profiles.put(KIND, name, weights, checks_to_json(Checks()))
                found[name] = checks_from_json(await profiles.get(KIND, name, weights))
            show_stopped(name, found[name])
        return found

    async def _busy(self) -> bool:
        return await self._backends.catalog.jobs.busy(running=self._backends.catalog.process_local)

    async def _check(self, hit: Job) -> bool:
        """Generate the hit again from noise and record the verdict; return False if the check ended early. A check that
        fails is not repeated."""
        job = check_of(hit)
        self._ended.clear()
        self._open, self._early = job.id, False
        try:
            jobs = self._backends.catalog.jobs
            await jobs.accept(job, durable=False)
            if self._early or await self._busy():  # a client's job came before this one could be deleted
                return False
            await dispatch(self._backends.bus, job, jobs.confirm)
            result = await self._result(job.id)
            if result is not None:
                await self._compare(hit, result)
            return not self._early
        finally:
            self._open = ""
            await self._end(job.id)

    async def _result(self, job_id: str) -> Result | None:
        """Wait for the check's end; return None if it has no image."""
        with contextlib.suppress(TimeoutError, NotFoundError):
            async with asyncio.timeout(LIMIT_S):
                while True:
                    job = await self._backends.catalog.jobs.get(job_id)
                    if job.state.final:
                        return job.result if job.state is JobState.SUCCEEDED else None
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._ended.wait(), POLL_S)
                    self._ended.clear()
        return None

    async def _end(self, job_id: str) -> None:
        """Delete the check's job, in whatever state, and its image; its worker stops between two steps."""
        if key := await self._backends.catalog.jobs.discard(job_id):
            await self._backends.blobs.delete([key])
        else:
            await self._backends.bus.publish(JobCancelled(job_id))

    async def _compare(self, hit: Job, noise: Result) -> None:
        assert hit.result is not None
        results = (hit.result, noise)
        images = [await self._backends.blobs.get(one.picture_key, one.picture_sha256) for one in results]
        asked = pb.EmbedImageRequest(images=images, looks=True)
        embedder = self._context.stub(EmbedderServiceStub, "embedder")
        reply: pb.EmbedImageResponse = await rpc.call(embedder.EmbedImage, asked, timeout_s=TIMEOUT_S)
        if reply.encoder_hash != hit.encoder_hash or len(reply.looks) != len(images):
            return  # the encoder, or the embedder's version, has changed since
        prompt = vector_from(hit.vector)
        measures = [
            Measures(
                score=max(float(vector_from(one.vector) @ prompt), 0.0),
                contrast=look.contrast,
                saturation=look.saturation,
                sharpness=look.sharpness,
            )
            for one, look in zip(reply.embeddings, reply.looks, strict=True)
        ]
        await self._record(hit, noise, measures[0], measures[1])

    async def _record(self, hit: Job, noise: Result, of_hit: Measures, of_noise: Measures) -> None:
        profiles, name = self._backends.catalog.profiles, (KIND, noise.model, noise.weights_hash)
        plan = hit.plan
        place = plan.relation, plan.source.value, plan.run_steps(hit.request.steps), plan.start_step
        async with self._recording:
            before = checks_from_json(await profiles.get(*name))
            after = before.after(place, of_hit, of_noise, self._clock.now())
            await profiles.put(*name, checks_to_json(after))
        failed = failures(of_hit, of_noise)
        METRICS.checks.labels(plan.relation, "fail" if failed else "pass").inc()
        if failed:
            log("cache_maintainer").info("live check failed", job=hit.id, measures=failed, step=plan.start_step)
        for cell in newly_stopped(before, after):
            log("cache_maintainer").warning(
                "live checks stopped reuse",
                model=noise.model, relation=cell.relation or "all", source=cell.source or "all",
                steps=cell.steps, start_step=cell.start_step, checks=cell.checks, fails=cell.fails,
            )  # fmt: skip
        show_stopped(noise.model, after)


def _weights(model: str, settings: Settings) -> dict[str, str]:
    """Return the weights hashes of the served models, or of this one, by name. Hashing takes a moment."""
    cards = served_cards(settings)
    if model and model not in cards:  # and look up no other: its name may be any path, or fetch files from the hub
        raise InvalidRequestError("model", f"must be a served model: {', '.join(cards)}", model)
    return {name: card.weights_hash for name, card in cards.items() if model in ("", name)}


def show_stopped(model: str, checks: Checks) -> None:
    METRICS.checks_stopped.labels(model).set(len(checks.stopped))


def hash_share(job_id: str) -> float:
    """Return a number in [0, 1) from the id alone."""
    return int.from_bytes(hashlib.blake2b(job_id.encode(), digest_size=8).digest(), "big") / 2**64


def check_of(hit: Job) -> Job:
    """Return the job that generates the hit's request from noise, with the same seed, by the model asked for."""
    alone = {"user": "", "priority": 0, "deadline_s": None, "slo": "", "drop_if_late": False}
    request = replace(hit.request, tenant=CHECKS, cache=CacheMode.OFF, **alone)  # type: ignore[arg-type]
    model = hit.plan.miss_model or hit.plan.model
    plan = noise_plan(request, model, "", (), f"Generated from noise: a live check of the hit {hit.id}.")
    return Job(
        id=new_id(), request=request, plan=plan, state=JobState.QUEUED, lane=lane_of(model),
        vector=hit.vector, encoder_hash=hit.encoder_hash,
    )  # fmt: skip


def _checkable(job: Job) -> bool:
    """Return whether the plan chose a start from the cache; a start that the client chose is not the plan's."""
    request, result, plan = job.request, job.result, job.plan
    has_image = result is not None and bool(result.picture_key) and bool(job.vector)
    planned = plan.source in HITS and not plan.is_miss and not request.named_job
    return has_image and planned and request.modality is Modality.IMAGE
