"""Looks for an exact repeat, then for similar prompts, and plans; whatever is away or slow costs the hit only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeAlias, TypeVar

import grpc
import numpy as np

from protos import retriever_pb2 as pb
from protos import retriever_pb2_grpc as pb_grpc
from services.retriever.planning import Question, Rules, from_candidates, from_noise, from_repeat, lot
from services.retriever.remembered import Remembered
from services.retriever.tables import Tables
from shared.bus import Subscription
from shared.errors import AfterimageError, InvalidRequestError
from shared.exact import exact_key
from shared.messages import EntriesCached, EntriesEvicted, Message
from shared.models.card import ModelCard
from shared.models.k_table import KTable, doubts
from shared.rpc_types import plan_to_proto, request_from_proto
from shared.service import Context
from shared.telemetry import METRICS, log
from shared.types import Entry, IndexFilter, Plan, PlanSource, Vector, vector_from, visible_owners

T = TypeVar("T")
Planned: TypeAlias = Plan  # inside the servicer its rpc hides the name
PAGE = 200
"""Entries read at a time while the memory fills."""


@dataclass
class Asked:
    """A question on its way to a plan, with what went wrong while it was looked into."""

    question: Question
    card: ModelCard
    rules: Rules
    vector: Vector | None
    degraded: list[str] = field(default_factory=list)


class RetrieverService(pb_grpc.RetrieverServiceServicer):
    name: ClassVar[str] = "retriever"
    ports: ClassVar[frozenset[str]] = frozenset({"catalog", "index", "bus"})

    async def start(self, context: Context) -> None:
        self._settings, self._backends = context.settings, context.backends
        self._tables = Tables(context.backends.catalog.profiles, context.settings.k_table_alpha, self._settings.dtype)
        await self._tables.add(context.settings.large)
        self._entries = Remembered(context.settings.remembered_entries)
        self._subscription: Subscription = await context.backends.bus.subscribe(
            [EntriesCached, EntriesEvicted], self.handle, on_gap=self._after_gap
        )
        self._tasks = [asyncio.create_task(self._tables.keep_fresh()), asyncio.create_task(self._read_newest())]

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
                await self._read(ids)  # what was drawn a moment ago is what its user refines next
            case EntriesEvicted(entry_ids=ids, holes=holes):
                self._entries.forget((*ids, *holes))
            case _:
                return

    async def _after_gap(self) -> None:
        """Which of them were evicted nobody will say any more: they are read again as they are needed."""
        self._entries.forget_all()

    async def _read(self, entry_ids: Sequence[str]) -> dict[str, Entry]:
        """These entries, from memory where possible."""
        known = self._entries.known(entry_ids)
        if len(known) < len(entry_ids):
            mark = self._entries.mark
            read = await self._backends.catalog.entries.by_ids([one for one in entry_ids if one not in known])
            self._entries.put(read.values(), mark)
            known |= read
        return known

    async def _read_newest(self) -> None:
        """Fills the memory behind the first requests' backs."""
        after, read = "", 0
        while read < self._settings.remembered_entries:
            try:
                mark = self._entries.mark
                page, after = await self._backends.catalog.entries.page(PAGE, after)
            except AfterimageError as error:
                log(self.name).warning("catalog away, entries are read as they are needed", error=str(error))
                return
            self._entries.put([entry for entry in page if entry.states], mark)
            read += len(page)
            if not after:
                return
            await asyncio.sleep(0.02)  # requests first

    async def Plan(self, request: pb.PlanRequest, context: Any) -> pb.PlanResponse:
        asked = await self._asked(request)
        plan = await self._repeat(asked) or await self._planned(asked)
        _count(plan, asked)
        return pb.PlanResponse(plan=plan_to_proto(plan))

    async def _asked(self, message: pb.PlanRequest) -> Asked:
        request = request_from_proto(message.request, tenant=message.tenant, seed_given=message.seed_given)
        if request.steps < 1:
            raise InvalidRequestError("request.steps", "at least 1", request.steps)
        card, table = await self._tables.of(message.model)
        predicted = message.predicted_hit if message.HasField("predicted_hit") else None
        question = Question(
            request=request,
            model=card.name,
            compat=card.compat(request.size, request.steps),
            encoder_hash=message.encoder_hash,
            predicted_hit=predicted,
            sampled=predicted is False and lot(request, "sample") < self._settings.sample_predicted_misses,
        )
        return Asked(question, card, self._rules(table), _vector(message.vector))

    def _rules(self, table: KTable) -> Rules:
        settings = self._settings
        return Rules(table, settings.capture_steps, settings.epsilon, settings.insert_on_hit)

    async def _repeat(self, asked: Asked) -> Planned | None:
        """The stored picture, when the client named the seed and drew this before."""
        request = asked.question.request
        if not (asked.question.reads and request.seed_given):
            return None
        key = exact_key(request, asked.question.compat)
        exact = self._backends.catalog.entries.exact(key, visible_owners(request.tenant, request.user))
        entry = await self._within(asked, "catalog", exact)
        return None if entry is None else from_repeat(asked.question, entry, asked.degraded)

    async def _planned(self, asked: Asked) -> Planned:
        question, noise = asked.question, partial(from_noise, asked.question, asked.rules)
        if not question.reads:
            return noise("Drawn from noise: the request does not read the cache.", degraded=asked.degraded)
        if asked.vector is None:
            return noise("Drawn from noise: the prompt has no embedding.", degraded=asked.degraded)
        if not _worth_it(question):
            return noise("Drawn from noise: the match predictor expects nothing similar.", degraded=asked.degraded)
        return await self._searched(asked, asked.vector)

    async def _searched(self, asked: Asked, vector: Vector) -> Planned:
        question = asked.question
        where = IndexFilter(
            compat=str(question.compat),
            owners=visible_owners(question.request.tenant, question.request.user),
            encoder_hash=question.encoder_hash,
        )
        search = self._backends.index.search("whole", vector, where, self._settings.candidates)
        hits = await self._within(asked, "index", search)
        entries = None
        if hits:
            entries = await self._within(asked, "catalog", self._read([hit.entry_id for hit in hits]))
        if hits is None or (hits and entries is None):
            reason = f"Drawn from noise: {asked.degraded[-1]}."
            return from_noise(question, asked.rules, reason, degraded=asked.degraded)
        asked.degraded += doubts(asked.rules.table, asked.card, question.encoder_hash, self._settings.k_table_alpha)
        step_in = partial(asked.card.step_in, steps=question.request.steps)
        return from_candidates(question, asked.rules, hits, entries or {}, step_in, degraded=asked.degraded)

    async def _within(self, asked: Asked, port: str, answer: Awaitable[T]) -> T | None:
        """The port's answer; None, with a note on the plan, when it is away, late or wrong."""
        try:
            async with asyncio.timeout(self._settings.lookup_timeout_s):
                return await answer
        except TimeoutError:
            asked.degraded.append(f"{port}: no answer within {self._settings.lookup_timeout_s:g} s")
        except Exception as error:  # no failure of the cache may fail a request (design §1)
            asked.degraded.append(f"{port}: {type(error).__name__}: {str(error)[:200]}")
        METRICS.degraded.labels(port).inc()
        log(self.name).warning("planned without a port", what=asked.degraded[-1])
        return None


def _vector(data: bytes) -> Vector | None:
    """The embedding; None when there is none. InvalidRequestError for what is not one."""
    if not data:
        return None
    if len(data) % 4:
        raise InvalidRequestError("vector", "float32, little endian: a multiple of 4 bytes", len(data))
    vector = vector_from(data)
    if not np.isfinite(vector).all():
        raise InvalidRequestError("vector", "finite numbers")
    return vector


def _worth_it(question: Question) -> bool:
    """A predicted miss is believed, except for a sampled share, and where the caller asks for more savings than the
    table that the prediction was made for."""
    return question.predicted_hit is not False or question.sampled or question.request.savings > 0.5


def _count(plan: Plan, asked: Asked) -> None:
    steps = asked.question.request.steps
    METRICS.lookups.labels(plan.source.value, str(round(plan.start_step * 50 / steps))).inc()
    wished = max((one.wished_step for one in plan.candidates), default=0)
    if plan.source in (PlanSource.LATENT, PlanSource.NOISE) and wished > plan.start_step and not plan.sampled:
        METRICS.holes.inc()
