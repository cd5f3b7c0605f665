"""The retriever's handlers: read a question and its rules, and plan from what the lookup finds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

import grpc

from protos import embedder_pb2
from protos import retriever_pb2 as pb
from protos import retriever_pb2_grpc as pb_grpc
from protos.embedder_pb2_grpc import EmbedderServiceStub
from services.retriever.asked import Asked, part_vectors_in, vector_in
from services.retriever.checked_bound import checked
from services.retriever.deadline import Deadline, meet
from services.retriever.entry_reader import EntryReader
from services.retriever.figures import count_plan
from services.retriever.learned import parts_of
from services.retriever.lookup import Lookup
from services.retriever.named_start import from_named_job, lead_from, source_of
from services.retriever.planning import hash_uniform, options_of
from services.retriever.policies import bound_of
from services.retriever.question import Question, Rules, choices_of
from services.retriever.refiners import refiners_of
from services.retriever.relation import normalised
from services.retriever.sooner import runs_in_order
from services.retriever.tables import Known, Tables
from shared.bus import Subscription
from shared.domain.errors import AfterimageError, InvalidRequestError
from shared.domain.messages import DataErased, EntriesCached, EntriesEvicted, Message
from shared.domain.types import IndexFilter, Modality, Plan, PlanSource, visible_owners
from shared.models.card_lookup import of_images
from shared.models.k_table import EncoderId
from shared.runtime import rpc
from shared.runtime.rpc_types import forecast_from_proto, parts_from_proto, plan_to_proto, request_from_proto
from shared.runtime.telemetry import log
from shared.service import Context
from shared.service.callers import MayCall
from shared.service.door import operator_recorded

Planned: TypeAlias = Plan  # inside the servicer its rpc hides the name
EMBEDDER_TIMEOUT_S = 30.0
MOST_NEAREST = 500
"""Most entries of one answer to Nearest."""


class RetrieverService(pb_grpc.RetrieverServiceServicer):
    name: ClassVar[str] = "retriever"
    callers: ClassVar[MayCall] = {"gateway": {"Plan", "Nearest"}}
    ports: ClassVar[frozenset[str]] = frozenset({"catalog", "index", "bus"})

    async def start(self, context: Context) -> None:
        self._settings, self._backends = context.settings, context.backends
        self._tables = Tables(context.backends.catalog.profiles, self._settings)
        await self._tables.open()
        self._entries = EntryReader(context.backends.catalog)
        self._lookup = Lookup(context.backends, self._entries, self._tables, self._settings, context.clock)
        self._subscription: Subscription = await context.backends.bus.subscribe(
            [EntriesCached, EntriesEvicted, DataErased], self.handle, on_gap=self._after_gap
        )
        self._without_table: set[tuple[str, str]] = set()
        tasks = self._tables.keep_fresh(), self._entries.read_newest(), self._check_tables(context)
        self._tasks = [asyncio.create_task(task) for task in tasks]

    def register(self, server: grpc.aio.Server) -> str:
        pb_grpc.add_RetrieverServiceServicer_to_server(self, server)
        return pb.DESCRIPTOR.services_by_name["RetrieverService"].full_name

    async def drain(self) -> None:
        await self._subscription.close()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def handle(self, message: Message) -> None:
        match message:
            case EntriesCached(entry_ids=ids):
                await self._entries.read_cached(ids)
            case EntriesEvicted(entry_ids=ids, holes=holes):
                self._entries.remembered.forget((*ids, *holes))
            case DataErased():
                self._backends.catalog.erasing.forget()
                normalised.cache_clear()
                parts_of.cache_clear()
                await self._after_gap()
            case _:
                return

    async def _after_gap(self) -> None:
        """Drop all entries in memory, because events were missed or data was erased, and read the newest again."""
        self._entries.forget_all()
        running = [task for task in self._tasks if not task.done()]
        self._tasks = [*running, asyncio.create_task(self._entries.read_newest())]

    async def _check_tables(self, context: Context) -> None:
        """Log at the start which served models have no K table for the encoder. Where the embedder cannot be reached
        from here, each model's first request logs it."""
        try:
            channel = context.channel("embedder")
            async with asyncio.timeout(EMBEDDER_TIMEOUT_S):
                await channel.channel_ready()  # the embedder may be in this process and start later
            message = embedder_pb2.EmbedTextRequest(texts=["an image"])
            reply = await rpc.call(EmbedderServiceStub(channel).EmbedText, message, timeout_s=EMBEDDER_TIMEOUT_S)
        except (AfterimageError, TimeoutError) as error:
            log(self.name).debug("encoder not known yet", error=str(error))
            return
        encoder = EncoderId(reply.encoder_hash, reply.encoder_weights)
        for known in self._tables.served:
            tables, notes = known.latent_tables(encoder, self._settings)
            if not tables and known.learned_bound(encoder, self._settings) is None:
                self._say_missing(known, encoder, notes)

    def _say_missing(self, known: Known, encoder: EncoderId, notes: Sequence[str]) -> None:
        """Log a missing K table once per model and encoder."""
        if (known.card.name, encoder.hash) not in self._without_table:
            self._without_table.add((known.card.name, encoder.hash))
            log(self.name).warning(
                "no K table: only exact repeats are reused", model=known.card.name, why="; ".join(notes)
            )

    async def Plan(self, request: pb.PlanRequest, context: Any) -> pb.PlanResponse:
        with self._recorded(context, "plan", request.tenant, request.request.user):
            return await self._planned(request)

    async def _planned(self, request: pb.PlanRequest) -> pb.PlanResponse:
        asked = await self._asked(request)
        if request.dry_run:
            return pb.PlanResponse(plan=plan_to_proto(await self._start(asked, request)))
        self._entries.seen.planning(asked.question.request)
        plan = await self._start(asked, request)
        if plan.source is not PlanSource.EXACT:
            self._entries.seen.planned(asked.question.request, plan)
        if not asked.question.request.named_job:
            count_plan(plan, asked.question.request)
        return pb.PlanResponse(plan=plan_to_proto(plan))

    async def Nearest(self, request: pb.NearestRequest, context: Any) -> pb.NearestResponse:
        with self._recorded(context, "nearest", request.tenant, request.user):
            return await self._neighbours(request)

    async def _neighbours(self, request: pb.NearestRequest) -> pb.NearestResponse:
        vector = vector_in(request.vector)
        if vector is None:
            raise InvalidRequestError("vector", "must be there")
        if not 1 <= request.limit <= MOST_NEAREST:
            raise InvalidRequestError("limit", f"must be from 1 to {MOST_NEAREST}", request.limit)
        owners = visible_owners(request.tenant, request.user, public=False)  # the console shows nobody else's
        where = IndexFilter(owners=owners, encoder_hash=request.encoder_hash)
        hits = await self._backends.index.search("whole", vector, where, request.limit)
        return pb.NearestResponse(hits=[pb.Neighbour(entry_id=one.entry_id, similarity=one.similarity) for one in hits])

    def _recorded(self, context: Any, action: str, tenant: str, user: str) -> AbstractContextManager[object]:
        """Record an operator who reads what a user's requests start from."""
        return operator_recorded(context, self._settings.data_dir, action, f"user {user} of tenant {tenant}")

    async def _start(self, asked: Asked, message: pb.PlanRequest) -> Planned:
        request = asked.question.request
        source = await source_of(request, self._backends.catalog.jobs) if request.named_job else None
        lead = lead_from(request, source, asked.known.card.frames) if source is not None else None
        if (repeat := await self._lookup.repeat(asked)) is not None:
            return replace(repeat, lead=lead)
        if source is not None:
            return from_named_job(asked.question, asked.rules, source, asked.vector, lead)
        plan = await self._lookup.planned(asked)
        if request.deadline_s is None or not asked.forecasts:
            return plan
        served = of_images({one.card.name: one.card for one in self._tables.served})
        deadline = Deadline(request, served, asked.forecasts)
        return await self._sooner(asked, message, plan, deadline) if deadline.late(plan) else plan

    async def _sooner(self, asked: Asked, message: pb.PlanRequest, plan: Planned, deadline: Deadline) -> Planned:
        """Return a plan that meets the deadline, where one does within the bound (services.retriever.deadline)."""
        found = await self._lookup.nearest(replace(asked, degraded=[]))
        own, wide = options_of(asked.question, asked.rules, found), None
        if asked.question.request.savings < self._settings.deadline_savings:
            more = await self._asked(message, savings=self._settings.deadline_savings)
            wide = options_of(more.question, replace(more.rules, every_start=True), found)
        return self._lookup.trimmed(meet(deadline, plan, runs_in_order(own, wide)))

    async def _asked(self, message: pb.PlanRequest, *, savings: float | None = None) -> Asked:
        """Read a question. savings: in place of the request's."""
        request = request_from_proto(message.request, tenant=message.tenant, seed_given=message.seed_given)
        request = request if savings is None else replace(request, savings=savings)
        if request.steps < 1:
            raise InvalidRequestError("request.steps", "must be at least 1", request.steps)
        known = await self._tables.of(message.model)
        predicted = message.predicted_hit if message.HasField("predicted_hit") else None
        question = Question(
            request=request,
            model=known.card.name,
            compat=known.card.compat_for(request),
            encoder_hash=message.encoder_hash,
            predicted_hit=predicted,
            choices=choices_of(known.card, request, self._settings.max_steps),
            sampled=predicted is False and hash_uniform(request, "sample") < self._settings.sample_predicted_misses,
            further=message.further_image,
            taken_roots=frozenset(message.taken_roots),
            taken_seeds=frozenset(message.taken_seeds),
            parts=parts_from_proto(message),
        )
        vector, encoder = vector_in(message.vector), EncoderId(message.encoder_hash, message.encoder_weights)
        rules, notes = self._rules(known, question, encoder, searched=vector is not None)
        parts = part_vectors_in(message.object_vector, message.background_vector, question.parts)
        forecasts = tuple(forecast_from_proto(one) for one in message.forecasts)
        return Asked(
            question, known, rules, vector, parts, notes, message.unknown_share, message.dry_run, forecasts=forecasts
        )

    def _rules(
        self, known: Known, question: Question, encoder: EncoderId, *, searched: bool
    ) -> tuple[Rules, tuple[str, ...]]:
        """Return the rules for a question, and notes about the K table for latents. searched: the question has an
        embedding."""
        settings, served = self._settings, self._tables.served
        latents, notes = known.latent_tables(encoder, settings)
        if known.learned_bound(encoder, settings) is not None:
            notes = ()
        elif not latents and searched:
            self._say_missing(known, encoder, notes)
        # clips start from latents alone: no table says how much of an image a clip may keep
        images = (
            searched
            and question.request.modality is Modality.IMAGE
            and settings.image_tier != "off"
            and settings.reuse_bound not in ("nirvana", "flexcache")
        )
        no_latents = "" if latents else "; ".join(notes)  # none where a learned bound is in force
        return Rules(
            checked(bound_of(known, served, question, encoder, latents, settings), known.checks),
            known.card.step_in,
            "reuse_bound is modm, which starts from images alone" if settings.reuse_bound == "modm" else no_latents,
            settings.capture_steps,
            settings.epsilon,
            settings.insert_on_hit,
            refiners_of(known, served, question, encoder, settings.max_steps) if images else (),
            known.card.prompted_from,
            question.variety(self._entries.seen, settings),
            known.pair_table(encoder, settings) is not None,
            known.card.regions,
        ), notes
