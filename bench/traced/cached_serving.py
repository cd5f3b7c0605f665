"""A retriever and a cache without queues: the plan of each request, given the images generated before it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from protos import retriever_pb2
from protos.retriever_pb2_grpc import RetrieverServiceStub
from services.cache_maintainer.cache_writes import Cache
from services.cache_maintainer.eviction.policies import state_store_of, window_of
from services.embedder.encoder import Encoder
from services.retriever.service import RetrieverService
from shared.domain.exact_repeats import exact_key
from shared.domain.plan_rules import capture_steps
from shared.domain.types import Captured, Job, JobState, Plan, Request, Result, State
from shared.models.card import ModelCard
from shared.models.card_lookup import served_cards
from shared.runtime import rpc
from shared.runtime.clock import SystemClock
from shared.runtime.rpc_types import plan_from_proto, request_to_proto
from shared.runtime.settings import Settings
from shared.service import running
from shared.service.backends import Backends

LEASE_S = 3600.0


@dataclass(frozen=True)
class Drawing:
    """The outcome of a plan: the model, the image, and each captured state with its codec, by its step."""

    model: str
    png: bytes
    states: Mapping[int, tuple[str, bytes]]
    steps_run: int


class CachedServing:
    """The real planner over gRPC and the real cache, fed with the results of a worker.

    There is no match predictor, so every request is looked up. Seeds count as chosen by the gateway, so a repeated
    prompt is generated again, as in the papers.
    """

    def __init__(
        self,
        settings: Settings,
        backends: Backends,
        stub: Any,
        encoder: Encoder,
        kept: Sequence[State] = (),
    ) -> None:
        self._settings, self._backends, self._stub, self.encoder = settings, backends, stub, encoder
        self.cards = served_cards(settings)
        self._cache = Cache(
            backends,
            state_store_of(settings, [one for one in kept if not one.is_picture]),
            SystemClock(),
            max_bytes=settings.cache_max_bytes,
            grace_s=settings.blob_grace_s,
            pictures=window_of(settings, [one for one in kept if one.is_picture]),
            pictures_of=lambda model: settings.image_tier == "all" or model == self.large.name,
        )

    @property
    def large(self) -> ModelCard:
        return next(iter(self.cards.values()))

    def capture_steps(self, request: Request) -> tuple[int, ...]:
        """Return the steps whose states a run from noise captures."""
        return capture_steps(self._settings.capture_steps, request.steps)

    def vectors(self, prompts: Sequence[str]) -> list[bytes]:
        return [one.vector for one in self.encoder.texts(prompts)]

    async def plan(self, request: Request, vector: bytes, unknown_share: float = 0.0) -> Plan:
        """Return the retriever's plan. unknown_share: share of the prompt's words that the encoder does not know."""
        message = retriever_pb2.PlanRequest(
            request=request_to_proto(request),
            tenant=request.tenant,
            seed_given=False,
            vector=vector,
            encoder_hash=self.encoder.hash,
            model=self.large.name,
            unknown_share=unknown_share,
        )
        return plan_from_proto((await rpc.call(self._stub.Plan, message, timeout_s=30)).plan)

    async def state(self, plan: Plan) -> bytes | None:
        """Return the state or image that the plan starts from."""
        return await self._backends.blobs.get(plan.state_key, plan.state_sha256) if plan.state_key else None

    async def keep(self, name: str, request: Request, plan: Plan, vector: bytes, drawing: Drawing) -> None:
        """Insert the outcome into the cache as a worker and the maintainer do; `name` is the job's id."""
        jobs, large = self._backends.catalog.jobs, self.large
        job = Job(
            id=name,
            request=request,
            plan=plan,
            state=JobState.QUEUED,
            vector=vector,
            encoder_hash=self.encoder.hash,
            exact_key=exact_key(request, large.compat(request.size, request.steps), large.sampler_id),
        )
        await jobs.accept(job, key_lifetime_s=60)
        await jobs.claim(name, "bench", LEASE_S)
        await jobs.finish(name, 1, await self._result(name, request, plan, drawing), plan)
        await self._cache.insert([name])
        if self._cache.holds_picture(name):
            (found,) = self.encoder.images([drawing.png])
            await self._cache.place_pictures({name: found.vector}, self.encoder.hash)

    async def _result(self, name: str, request: Request, plan: Plan, drawing: Drawing) -> Result:
        card, blobs, states = self.cards[drawing.model], self._backends.blobs, []
        for step, (codec, data) in drawing.states.items():
            key = f"states/{name}-1-{step}.safetensors"
            sha256 = await blobs.put(key, data, durable=False)
            states.append(Captured(step, key, len(data), codec, sha256))
        picture_key = f"pictures/{name}-1.png"
        sha256 = await blobs.put(picture_key, drawing.png, durable=False)
        return Result(
            picture_key, sha256, len(drawing.png), card.name, card.weights_hash, drawing.steps_run,
            captured=tuple(states), compat=card.compat(request.size, plan.run_steps(request.steps)),
        )  # fmt: skip


@contextlib.asynccontextmanager
async def cached_serving(settings: Settings, encoder: Encoder) -> AsyncIterator[CachedServing]:
    """Serve from the settings' data directory, with the entries that it already holds."""
    async with (
        running([RetrieverService()], settings) as process,
        grpc.aio.insecure_channel(process.address, options=rpc.channel_options(settings.max_message_bytes)) as channel,
    ):
        backends = process.context.backends
        kept = await backends.catalog.entries.states()
        yield CachedServing(settings, backends, RetrieverServiceStub(channel), encoder, kept)
