"""Keeps one predictor per search space in step with the cache, and measures the predictor's accuracy."""

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
from shared.service.callers import MayCall

SearchSpace = tuple[str, str, str]
"""(scope key, compatibility key, encoder hash): the entries that one search of the index covers."""
PAGE = 500
SLICE_S = 0.002
"""Seconds for which vectors are added before the event loop gets control; one vector takes up to a millisecond."""
REREAD_S = 30.0
RETRY_S = 2.0


class MatchPredictorService(pb_grpc.MatchPredictorServiceServicer):
    name: ClassVar[str] = "match_predictor"
    callers: ClassVar[MayCall] = {"gateway": {"Predict"}}
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
        """Entries evicted while the catalog is read: pages read before may still name them."""
        self._card: ModelCard | None = None
        await self._read_threshold()
        self.built = asyncio.Event()
        """Set once the catalog is read; until then every request is predicted as a hit."""
        # Subscribe before reading the catalog, so that no event is missed. Events that repeat catalog rows do nothing.
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
            raise InvalidRequestError(
                "vector", "must be float32, little endian: a non-empty multiple of 4 bytes", len(request.vector)
            )
        vector = vector_from(request.vector)
        shelves = (self._shelves.get((owner, request.compat, request.encoder_hash)) for owner in request.owners)
        answers = [shelf.predict(vector) for shelf in shelves if shelf is not None]
        hit = any(hit for hit, _ in answers) or self._settings.predictor == "always" or not self.built.is_set()
        METRICS.predictions.labels("hit" if hit else "miss").inc()
        score = max((score for _, score in answers), default=-1.0)
        return pb.PredictResponse(hit=hit, score=score, predictor=self._settings.predictor)

    async def Stats(self, request: pb.StatsRequest, context: Any) -> pb.StatsResponse:
        """Return the counters; precision and recall are nan without data."""
        return pb.StatsResponse(
            predictor=self._settings.predictor,
            entries=len(self._home),
            fits=self._fits,
            precision=self.confusion.precision,
            recall=self.confusion.recall,
            judged=self.confusion.judged,
        )

    # ---- events ----

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
        """Read all entries from the catalog, page by page; retry while the catalog is unreachable.

        This also runs after a gap in the events: entries known here but missing from the catalog were evicted.
        """
        after, before, seen = "", set(self._home), set[str]()
        while True:
            try:
                items = await self._context.backends.catalog.entries.items(after, PAGE)
            except AfterimageError as error:
                log(self.name).warning("catalog unreachable, every request is predicted as a hit", error=str(error))
                await asyncio.sleep(RETRY_S)
                continue
            if not items:
                break
            await self._add(items)
            seen.update(item.entry_id for item in items if "whole" in item.vectors)  # skips entries with only an image
            after = items[-1].entry_id
        self._remove(sorted(before - seen))
        self._gone.clear()
        await self._refit()
        self.built.set()

    async def _add(self, items: Sequence[IndexItem]) -> None:
        until = time.perf_counter() + SLICE_S
        for item in items:
            if "whole" not in item.vectors or item.entry_id in self._home or item.entry_id in self._gone:
                continue  # an entry's embedding never changes, and ids are never reused
            shelf = (item.owner, item.compat, item.encoder_hash)
            if shelf not in self._shelves:
                self._shelves[shelf] = self._new(item.encoder_hash)
            self._shelves[shelf].update({item.entry_id: item.vectors["whole"]}, ())
            self._home[item.entry_id] = shelf
            if time.perf_counter() > until:
                # as long as the slice: requests of this process come between, while an index fills its graph as well
                await asyncio.sleep(SLICE_S)
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
        # a predicted miss counts only if it was looked up for the sample; other lookups would bias the counts
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
            # kept, because every search for a hub model sends requests to the hub
            if self._card is None:
                card = await asyncio.to_thread(served_card, settings)  # may ask the model hub
                await asyncio.to_thread(lambda: card.weights_hash)
                self._card = card
            self._tables = await load_k_tables(profiles, self._card, settings.k_table_alpha)
        except (AfterimageError, ValueError) as error:  # keep the current tables
            log(self.name).warning("K table not read", error=str(error))

    @property
    def _settings(self) -> Settings:
        return self._context.settings

    def _threshold(self, encoder_hash: str) -> float:
        """Return the lowest similarity that the K table in force for this encoder reuses.

        Without a measured table, Fig. 10 applies. Fig. 10 applies to encoders with certain weights files, which entries
        do not name. If Fig. 10 does not apply either, the retriever does no lookup, whatever this service predicts.
        """
        if self._card is None:  # no table was read yet
            return FIG_10.lowest_similarity
        alpha = self._settings.k_table_alpha
        table, _ = latent_table(self._tables, self._card, EncoderId(encoder_hash), alpha, "")
        table = table or FIG_10
        if self._settings.reuse_rules == "paper":
            return table.lowest_similarity
        return max(table.lowest_similarity, self._settings.similarity_floor if table.floor is None else table.floor)

    def _new(self, encoder_hash: str) -> MatchPredictor:
        match self._settings.predictor:
            case "sketch":
                return Sketch(lambda: self._threshold(encoder_hash), self._settings.sketch_margin)
            case "svm":
                from services.match_predictor.svm import OneClassSvm  # importing scikit-learn takes a second

                return OneClassSvm()
            case "always":
                return Always()
