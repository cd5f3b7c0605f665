"""Keeps one predictor per searchable part of the cache in step with the cache, and measures how often it is right."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import grpc

from protos import match_predictor_pb2 as pb
from protos import match_predictor_pb2_grpc as pb_grpc
from services.match_predictor import MatchPredictor
from services.match_predictor.accuracy import Confusion
from services.match_predictor.always import Always
from services.match_predictor.sketch import Sketch
from shared.bus import Subscription
from shared.domain.errors import AfterimageError, InvalidRequestError
from shared.domain.messages import EntriesCached, EntriesEvicted, JobQueued, Message
from shared.domain.types import IndexItem, vector_from
from shared.models.card import ModelCard
from shared.models.card_lookup import served_card
from shared.models.k_table import FIG_10, EncoderId, KTable
from shared.models.tables_in_force import latent_table, load_k_tables
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS, log
from shared.service import Context

SearchSpace = tuple[str, str, str]
"""(scope key, compatibility key, encoder hash): what one search of the index would look through."""
PAGE = 500
SLICE_S = 0.002
"""How long vectors are added between two turns of the event loop; one costs up to a millisecond."""
REREAD_S = 30.0
RETRY_S = 2.0


class MatchPredictorService(pb_grpc.MatchPredictorServiceServicer):
    name: ClassVar[str] = "match_predictor"
    ports: ClassVar[frozenset[str]] = frozenset({"catalog", "bus"})

    async def start(self, context: Context) -> None:
        self._context = context
        self._tables: tuple[KTable, ...] = (FIG_10,)
        self._shelves: dict[SearchSpace, MatchPredictor] = {}
        self._home: dict[str, SearchSpace] = {}
        self._fits = 0
        self._fitting = asyncio.Lock()
        self.confusion = Confusion()
        self._gone: set[str] = set()
        """Evicted while the catalog was read: a page read before that may still name them."""
        self._card: ModelCard | None = None
        await self._read_threshold()
        self.built = asyncio.Event()
        """Set once the catalog is read; until then every lookup is worth it."""
        # subscribed first: what is cached while the catalog is read is heard, and hearing it twice is fine
        self._subscription: Subscription = await context.backends.bus.subscribe(
            [EntriesCached, EntriesEvicted, JobQueued], self.handle, on_gap=self.rebuild
        )
        self._tasks = [asyncio.create_task(self.rebuild()), asyncio.create_task(self._keep_fresh())]

    def register(self, server: grpc.aio.Server) -> str:
        pb_grpc.add_MatchPredictorServiceServicer_to_server(self, server)
        return pb.DESCRIPTOR.services_by_name["MatchPredictorService"].full_name

    async def drain(self) -> None:
        await self._subscription.close()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- gRPC ----

    async def Predict(self, request: pb.PredictRequest, context: Any) -> pb.PredictResponse:
        if not request.vector or len(request.vector) % 4:
            raise InvalidRequestError("vector", "float32, little endian: a multiple of 4 bytes", len(request.vector))
        vector = vector_from(request.vector)
        shelves = (self._shelves.get((owner, request.compat, request.encoder_hash)) for owner in request.owners)
        answers = [shelf.predict(vector) for shelf in shelves if shelf is not None]
        hit = any(hit for hit, _ in answers) or self._settings.predictor == "always" or not self.built.is_set()
        METRICS.predictions.labels("hit" if hit else "miss").inc()
        score = max((score for _, score in answers), default=-1.0)
        return pb.PredictResponse(hit=hit, score=score, predictor=self._settings.predictor)

    async def Stats(self, request: pb.StatsRequest, context: Any) -> pb.StatsResponse:
        """Precision and recall are nan while nothing is known of them."""
        return pb.StatsResponse(
            predictor=self._settings.predictor,
            entries=len(self._home),
            fits=self._fits,
            precision=self.confusion.precision,
            recall=self.confusion.recall,
            judged=self.confusion.judged,
        )

    # ---- facts ----

    async def handle(self, message: Message) -> None:
        match message:
            case EntriesCached(entry_ids=ids):
                await self._add(await self._context.backends.catalog.entries.items_of(ids))
                await self._refit()
            case EntriesEvicted(entry_ids=ids):
                self._remove(ids)
                await self._refit()
            case JobQueued():
                self._judge(message)
            case _:
                return

    async def rebuild(self) -> None:
        """From the catalog, page by page; tried again while the catalog is away. After a gap in the facts too: what it
        still knows and the catalog does not was evicted meanwhile."""
        after, before, seen = "", set(self._home), set[str]()
        while True:
            try:
                items = await self._context.backends.catalog.entries.items(after, PAGE)
            except AfterimageError as error:
                log(self.name).warning("catalog away, every lookup is worth it", error=str(error))
                await asyncio.sleep(RETRY_S)
                continue
            if not items:
                break
            await self._add(items)
            seen.update(item.entry_id for item in items if "whole" in item.vectors)  # not those with a picture alone
            after = items[-1].entry_id
        self._remove(sorted(before - seen))
        self._gone.clear()
        await self._refit()
        self.built.set()

    async def _add(self, items: Sequence[IndexItem]) -> None:
        until = time.perf_counter() + SLICE_S
        for item in items:
            if "whole" not in item.vectors or item.entry_id in self._home or item.entry_id in self._gone:
                continue  # an entry's embedding never changes, and its id never comes back
            shelf = (item.owner, item.compat, item.encoder_hash)
            if shelf not in self._shelves:
                self._shelves[shelf] = self._new(item.encoder_hash)
            self._shelves[shelf].update({item.entry_id: item.vectors["whole"]}, ())
            self._home[item.entry_id] = shelf
            if time.perf_counter() > until:
                await asyncio.sleep(0)
                until = time.perf_counter() + SLICE_S

    def _remove(self, entry_ids: Sequence[str]) -> None:
        if not self.built.is_set():
            self._gone.update(entry_ids)
        for entry_id in entry_ids:
            shelf = self._home.pop(entry_id, None)
            if shelf is not None:
                self._shelves[shelf].update({}, (entry_id,))
                if not len(self._shelves[shelf]):
                    del self._shelves[shelf]

    async def _refit(self) -> None:
        async with self._fitting:
            for predictor in list(self._shelves.values()):
                work = predictor.refit()
                if work is not None:
                    await asyncio.to_thread(work)
                    self._fits += 1

    def _judge(self, fact: JobQueued) -> None:
        # a predicted miss that was looked up for another reason than the sample would count too often
        found = fact.found if fact.predicted_hit or fact.sampled else None
        self.confusion = self.confusion.judge(fact.predicted_hit, found, self._settings.sample_predicted_misses)
        METRICS.predictor_precision.set(self.confusion.precision)
        METRICS.predictor_recall.set(self.confusion.recall)

    # ---- the threshold follows the K table in force ----

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(REREAD_S)
            await self._read_threshold()

    async def _read_threshold(self) -> None:
        settings, profiles = self._settings, self._context.backends.catalog.profiles
        try:
            if self._card is None:  # one for good: a model from the hub would be looked up there each time
                card = await asyncio.to_thread(served_card, settings)  # the hub may be asked
                await asyncio.to_thread(lambda: card.weights_hash)
                self._card = card
            self._tables = await load_k_tables(profiles, self._card, settings.k_table_alpha)
        except (AfterimageError, ValueError) as error:  # the tables in hand stay in force
            log(self.name).warning("K table not read", error=str(error))

    @property
    def _settings(self) -> Settings:
        return self._context.settings

    def _threshold(self, encoder_hash: str) -> float:
        """The lowest similarity that the K table in force for this encoder reuses.

        Fig. 10 where no measured table counts: its encoder is known by its weights, which entries do not name. Where it
        does not count either, the retriever does not look up whatever is predicted here.
        """
        if self._card is None:  # no table was read yet
            return FIG_10.lowest_similarity
        alpha = self._settings.k_table_alpha
        table, _ = latent_table(self._tables, self._card, EncoderId(encoder_hash), alpha, "")
        return (table or FIG_10).lowest_similarity

    def _new(self, encoder_hash: str) -> MatchPredictor:
        match self._settings.predictor:
            case "sketch":
                return Sketch(lambda: self._threshold(encoder_hash), self._settings.sketch_margin)
            case "svm":
                from services.match_predictor.svm import OneClassSvm  # scikit-learn takes a second to import

                return OneClassSvm()
            case "always":
                return Always()
