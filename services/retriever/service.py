"""The retriever's handlers: look for an exact repeat, then for similar prompts and images, then plan. A port that is
away costs only the hit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, TypeAlias, TypeVar

import grpc

from protos import embedder_pb2
from protos import retriever_pb2 as pb
from protos import retriever_pb2_grpc as pb_grpc
from protos.embedder_pb2_grpc import EmbedderServiceStub
from services.retriever.asked import Asked, vector_in
from services.retriever.checked_bound import checked
from services.retriever.entry_reader import EntryReader
from services.retriever.figures import count_plan, outcome
from services.retriever.named_start import from_named_job, lead_from, source_of
from services.retriever.planning import from_noise, from_repeat, hash_uniform, options_of, plan_of
from services.retriever.policies import bound_of
from services.retriever.question import Question, Rules, choices_of
from services.retriever.refiners import refiners_of
from services.retriever.selection import should_widen_search, trim_candidates
from services.retriever.starts import Found
from services.retriever.tables import Known, Tables
from shared.bus import Subscription
from shared.domain.errors import AfterimageError, InvalidRequestError
from shared.domain.exact_repeats import exact_key, repeat_weights
from shared.domain.messages import EntriesCached, EntriesEvicted, Message
from shared.domain.types import Entry, Hit, IndexFilter, Modality, Plan, PlanSource, Vector, visible_owners
from shared.models.k_table import EncoderId
from shared.runtime import rpc
from shared.runtime.rpc_types import plan_to_proto, request_from_proto
from shared.runtime.telemetry import METRICS, log
from shared.service import Context

T = TypeVar("T")
Planned: TypeAlias = Plan  # inside the servicer its rpc hides the name
EMBEDDER_TIMEOUT_S = 30.0


class RetrieverService(pb_grpc.RetrieverServiceServicer):
    name: ClassVar[str] = "retriever"
    ports: ClassVar[frozenset[str]] = frozenset({"catalog", "index", "bus"})

    async def start(self, context: Context) -> None:
        self._settings, self._backends, self._clock = context.settings, context.backends, context.clock
        self._tables = Tables(context.backends.catalog.profiles, self._settings)
        await self._tables.open()
        self._entries = EntryReader(context.backends.catalog)
        self._subscription: Subscription = await context.backends.bus.subscribe(
            [EntriesCached, EntriesEvicted], self.handle, on_gap=self._after_gap
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
            case _:
                return

    async def _after_gap(self) -> None:
        """Drop all entries in memory, because events were missed, and read the newest again."""
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
        asked = await self._asked(request)
        if request.dry_run:
            return pb.PlanResponse(plan=plan_to_proto(await self._start(asked)))
        self._entries.seen.planning(asked.question.request)
        plan = await self._start(asked)
        if plan.source is not PlanSource.EXACT:
            self._entries.seen.planned(asked.question.request, plan)
        if not asked.question.request.named_job:
            count_plan(plan, asked.question.request)
        return pb.PlanResponse(plan=plan_to_proto(plan))

    async def _start(self, asked: Asked) -> Planned:
        request = asked.question.request
        source = await source_of(request, self._backends.catalog.jobs) if request.named_job else None
        rule, limit = asked.known.card.frames, self._settings.max_pixel_steps
        lead = lead_from(request, source, rule, limit) if source is not None else None
        if (repeat := await self._repeat(asked)) is not None:
            return replace(repeat, lead=lead)
        if source is not None:
            return from_named_job(asked.question, asked.rules, source, asked.vector, lead)
        return await self._planned(asked)

    async def _asked(self, message: pb.PlanRequest) -> Asked:
        request = request_from_proto(message.request, tenant=message.tenant, seed_given=message.seed_given)
        if request.steps < 1:
            raise InvalidRequestError("request.steps", "must be at least 1", request.steps)
        known = await self._tables.of(message.model)
        predicted = message.predicted_hit if message.HasField("predicted_hit") else None
        question = Question(
            request=request,
            model=known.card.name,
            compat=known.card.compat(request.size, request.steps, request.frames),
            encoder_hash=message.encoder_hash,
            predicted_hit=predicted,
            choices=choices_of(known.card, request, self._settings.max_steps),
            sampled=predicted is False and hash_uniform(request, "sample") < self._settings.sample_predicted_misses,
            further=message.further_image,
            taken_roots=frozenset(message.taken_roots),
            taken_seeds=frozenset(message.taken_seeds),
        )
        vector, encoder = vector_in(message.vector), EncoderId(message.encoder_hash, message.encoder_weights)
        rules, notes = self._rules(known, question, encoder, searched=vector is not None)
        return Asked(question, known, rules, vector, notes, message.unknown_share, message.dry_run)

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
            and settings.reuse_bound != "nirvana"
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
        ), notes

    async def _repeat(self, asked: Asked) -> Planned | None:
        """Return a plan for the stored image, when the client named the seed and the same request was generated
        before."""
        request = asked.question.request
        if not (asked.question.request.cache.reads and request.seed_given):
            return None
        key = exact_key(request, asked.question.compat, asked.known.card.sampler_id)
        served = (one.card.weights_hash for one in self._tables.served)
        weights = repeat_weights(request, asked.question.compat.weights_hash, served)
        exact = self._backends.catalog.entries.exact(key, visible_owners(request.tenant, request.user), weights)
        entry = await self._within(asked, "catalog", exact)
        variety = None if request.named_job else asked.rules.variety
        if entry is None or (variety is not None and variety.clash(entry)):
            return None
        return from_repeat(asked.question, entry, asked.degraded)

    async def _planned(self, asked: Asked) -> Planned:
        question, noise = asked.question, partial(from_noise, asked.question, asked.rules)
        if not question.request.cache.reads:
            return noise("Generated from noise: the request does not read the cache.", degraded=asked.degraded)
        if asked.vector is None:
            return noise("Generated from noise: the prompt has no embedding.", degraded=asked.degraded)
        if self._settings.reuse_rules == "relation" and asked.unknown_share > self._settings.unknown_words_share:
            return noise(
                f"Generated from noise: {asked.unknown_share:.0%} of the prompt's words that name something are "
                "unknown to the encoder, so its similarity to other prompts says little.",
                degraded=asked.degraded,
            )
        worth_it = question.worth_searching and not asked.rules.no_latents
        if asked.rules.no_latents:
            asked.degraded += asked.notes
        if not worth_it and not asked.rules.refiners:
            why = asked.rules.no_latents or "the match predictor expects nothing similar"
            return noise(f"Generated from noise: {why}.", degraded=asked.degraded)
        return await self._searched(asked, asked.vector, latents=worth_it)

    async def _searched(self, asked: Asked, vector: Vector, *, latents: bool) -> Planned:
        settings = self._settings
        # one time limit for both searches and their reads, so that a wider search cannot double the wait of the caller
        asked.over_at = self._clock.monotonic() + 2 * settings.lookup_timeout_s
        found = await self._found(asked, vector, latents=latents)
        if found is None:
            reason = f"Generated from noise: {asked.degraded[-1]}."
            return from_noise(asked.question, asked.rules, reason, degraded=asked.degraded)
        if found.latents is not None:
            asked.degraded += asked.notes
        options = options_of(asked.question, asked.rules, found)
        nearest = options.nearest_latents()
        if settings.further_candidates > settings.candidates and should_widen_search(nearest, settings.candidates):
            further = await self._further(asked, vector, found)
            if further is not None:
                options = options_of(asked.question, asked.rules, further)
            done = "failed" if further is None else outcome(nearest, options.nearest_latents())
            METRICS.wider_searches.labels(done).inc(not asked.dry_run)
            return self._in_mind(plan_of(options, degraded=asked.degraded))
        return plan_of(options, degraded=asked.degraded)

    async def _found(self, asked: Asked, vector: Vector, *, latents: bool) -> Found | None:
        """Return the nearest entries of both kinds; None when the searches failed."""
        of_latents, of_pictures = await asyncio.gather(
            self._search(asked, "whole", vector, str(asked.question.compat)) if latents else _nothing(),
            # an image starts any model at any size, so its compatibility key does not matter
            self._search(asked, "image", vector, "") if asked.rules.refiners else _nothing(),
        )
        entries = await self._entries_of(asked, of_latents, of_pictures)
        if entries is None or (of_latents is None and not of_pictures and asked.degraded):
            return None
        return Found(of_latents, of_pictures, entries)

    async def _further(self, asked: Asked, vector: Vector, found: Found) -> Found | None:
        """Search again with more latent candidates; None when that fails."""
        compat = str(asked.question.compat)
        of_latents = await self._search(asked, "whole", vector, compat, self._settings.further_candidates)
        entries = await self._entries_of(asked, of_latents, found.pictures) if of_latents is not None else None
        return None if entries is None else Found(of_latents, found.pictures, entries)

    async def _entries_of(self, asked: Asked, *hits: Sequence[Hit] | None) -> Mapping[str, Entry] | None:
        ids = list(dict.fromkeys(hit.entry_id for some in hits for hit in some or ()))
        return await self._within(asked, "catalog", self._entries.read(ids)) if ids else {}

    def _in_mind(self, plan: Planned) -> Planned:
        """Return the plan without those candidates of the wider search that were not chosen."""
        latents = [one for one in plan.candidates if one.kind == "latent"]
        others = [one for one in plan.candidates if one.kind != "latent"]
        kept = trim_candidates(latents, self._settings.candidates, next((one for one in latents if one.chosen), None))
        return replace(plan, candidates=(*kept, *others))

    async def _search(
        self, asked: Asked, name: str, vector: Vector, compat: str, limit: int | None = None
    ) -> list[Hit] | None:
        """Return the nearest entries by this named vector among those visible to the caller; None when the index is
        away, late or wrong."""
        request = asked.question.request
        where = IndexFilter(compat, visible_owners(request.tenant, request.user), asked.question.encoder_hash)
        search = self._backends.index.search(name, vector, where, limit or self._settings.candidates)
        return await self._within(asked, "index", search)

    async def _within(self, asked: Asked, port: str, answer: Awaitable[T]) -> T | None:
        """Return the port's answer; None, with a note on the plan, when the port is away, late or wrong."""
        limit_s = max(0.0, min(self._settings.lookup_timeout_s, asked.over_at - self._clock.monotonic()))
        try:
            async with asyncio.timeout(limit_s):
                return await answer
        except TimeoutError:
            what = said = f"{port}: no answer within {limit_s:.3g} s"
        except Exception as error:  # no failure of the cache may fail a request (docs/architecture.md, Request path)
            outside = error.outside if isinstance(error, AfterimageError) else str(error)
            said, what = (f"{port}: {type(error).__name__}: {text[:200]}" for text in (outside, str(error)))
        asked.degraded.append(said)
        METRICS.degraded.labels(port).inc(not asked.dry_run)
        log(self.name).warning("planned without a port", what=what)
        return None


async def _nothing() -> None:
    """The result of a search that is not made."""
