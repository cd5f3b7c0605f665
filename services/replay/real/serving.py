"""Serve one policy by an Afterimage of its own, warm and with an empty cache, through the public client."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

from protos import cache_maintainer_pb2, match_predictor_pb2
from protos.cache_maintainer_pb2_grpc import CacheMaintainerServiceStub
from protos.match_predictor_pb2_grpc import MatchPredictorServiceStub
from services.replay.real.settings import ServedPolicy
from services.replay.real.sitting import Answer, Load, Sitting, answer_of
from shared.catalog import open_catalog
from shared.client import AsyncClient, Picture
from shared.domain.errors import AfterimageError, NotFoundError
from shared.models import added
from shared.models.card_lookup import served_card
from shared.models.k_table import KTable, named_table, profile_kind, scaled, table_to_json
from shared.runtime.clock import Clock, ManualClock
from shared.runtime.settings import Settings
from shared.runtime.telemetry import METRICS
from shared.service import Running

ALONE = 2
"""Images generated alone on the warm service; SLOs are multiples of the faster one's latency."""
WAIT_S = 7 * 24 * 3600.0
"""Timeout of a request, above any queue."""
SETTLE_S = 60.0

Start = Callable[[Settings, Clock | None], AbstractAsyncContextManager[Running]]
"""Function that starts every service in this process."""


Keep = Callable[[int, bytes], None]
"""Function that receives each request's PNG, animated of a clip."""


async def serve(load: Load, stand: ServedPolicy, start: Start, keep: Keep, advance: Callable[[int], None]) -> Sitting:
    """Serve every request of the trace by a temporary Afterimage.

    A failed request becomes an answer with an error. Raises AfterimageError if the services do not start, or no counted
    request succeeds.
    """
    clock = ManualClock() if load.one_at_a_time else None
    with _settings(load, stand) as settings:
        await _put_tables(settings, load)
        async with start(settings, clock) as process, AsyncClient(process.address, api_key="", tls_ca="") as client:
            one = _Serving(load, stand, process, client, keep, advance)
            await one.warm()
            return await (one.in_turn(clock) if clock else one.at_their_arrivals())


@contextmanager
def _settings(load: Load, stand: ServedPolicy) -> Iterator[Settings]:
    """Yield the policy's settings with an empty data directory that has the same model names."""
    at_once = {"cache_batch_s": 0.0, "picture_batch_s": 0.0} if load.one_at_a_time else {}
    given = stand.settings.model_dump()
    with tempfile.TemporaryDirectory(prefix="afterimage-replay-") as folder:
        added.copy(stand.settings.data_dir, Path(folder))
        own = {"data_dir": Path(folder), "catalog_url": "", "blobs_url": "", **at_once}
        yield Settings(**(given | own | {"max_queued": max(given["max_queued"], len(load.trace) + 1)}))


async def _put_tables(settings: Settings, load: Load) -> None:
    """Store the named tables, if any, in the catalog, where they apply to any weights and encoder: for the model that
    generates, and for the large model, whose table the match predictor reads."""
    tables = named_tables(load, settings.k_table_alpha)
    if not tables:
        return
    catalog = await open_catalog(settings.catalog_url)
    try:
        for card in {card.name: card for card in (served_card(settings), load.card)}.values():
            for kind, table in tables.items():
                await catalog.profiles.put(kind, card.name, card.weights_hash, table_to_json(table))
    finally:
        await catalog.close()


def named_tables(load: Load, alpha: float) -> dict[str, KTable]:
    """Return the named tables by their kind in the catalog.

    The services scale a table to any T but those of the model's `auto_steps`, which have tables of their own.
    """
    found, few = dict[str, KTable](), {*load.card.auto_steps} - {load.card.default_steps}
    if load.table is not None:
        whole = scaled(load.table, load.card.default_steps) if load.table.steps in few else load.table
        found = {profile_kind(alpha): whole}
        found |= {profile_kind(alpha, steps=steps): scaled(load.table, steps) for steps in few}
    if load.pair_table is not None:
        found[profile_kind(alpha, pairs=True)] = load.pair_table
    return {kind: named_table(table) for kind, table in found.items()}


class _Serving:
    def __init__(
        self,
        load: Load,
        stand: ServedPolicy,
        process: Running,
        client: AsyncClient,
        keep: Keep,
        advance: Callable[[int], None],
    ) -> None:
        self._load, self._stand, self._process, self._client = load, stand, process, client
        self._keep, self._advance = keep, advance
        self._maintainer: Any = CacheMaintainerServiceStub(process.context.channel("cache_maintainer"))
        self._predictor: Any = MatchPredictorServiceStub(process.context.channel("match_predictor"))
        self._steps: list[int] = load.trace.asked(load.steps).tolist()
        self._answers: dict[int, Answer] = {}
        self._alone_s = self._step_s = self._evicted_in_warmup = 0.0

    async def warm(self) -> None:
        """Load the models with a first image, then measure an image generated alone."""
        usual, unusual = self._load.usual_steps, self._load.unusual_steps
        await self._ask(0, usual, "off")
        self._alone_s = await self._alone(usual)
        if unusual != usual:
            self._step_s = max(0.0, (await self._alone(unusual) - self._alone_s) / (unusual - usual))

    async def _alone(self, steps: int) -> float:
        """Return the seconds of an image with `steps` steps, generated alone."""
        seconds = []
        for _ in range(ALONE):
            begun = time.monotonic()
            await self._ask(0, steps, "off")
            seconds.append(time.monotonic() - begun)
        return min(seconds)

    async def at_their_arrivals(self) -> Sitting:
        """Send the requests at their arrivals, without waiting for earlier images. The first is sent at once."""
        arrival_s = (self._load.trace.arrival_s - self._load.trace.arrival_s[0]).tolist()
        begun, processor = time.monotonic(), time.process_time()
        async with asyncio.TaskGroup() as group:
            for number, at in enumerate(arrival_s):
                await asyncio.sleep(max(0.0, begun + at - time.monotonic()))
                self._count_from(number)
                group.create_task(self._answer(number, begun + at))
        spent = time.monotonic() - begun, time.process_time() - processor
        await self._settled()
        return self._sitting(*spent, await self._stats())

    async def in_turn(self, clock: ManualClock) -> Sitting:
        """Send each request after the previous one is in the cache, with the cache's clock at the arrival."""
        arrival_s = self._load.trace.arrival_s.tolist()
        begun, processor = time.monotonic(), time.process_time()
        for number, (before, at) in enumerate(itertools.pairwise([arrival_s[0], *arrival_s])):
            clock.advance(at - before)
            self._count_from(number)
            await self._answer(number, time.monotonic())
            await self._settled()
        spent = time.monotonic() - begun, time.process_time() - processor
        return self._sitting(*spent, await self._stats())

    def _count_from(self, number: int) -> None:
        if number == self._load.warmup:
            self._evicted_in_warmup = _evicted()

    def _ask(self, number: int, steps: int, cache: Any) -> Awaitable[Picture]:
        load = self._load
        size, frames = load.trace.sizes[number], load.trace.frames
        return self._client.generate(
            load.trace.prompts[number], timeout_s=WAIT_S, width=size.width, height=size.height, steps=steps,
            modality="video" if frames > 1 else "image", frames=frames, seed=load.seed + number,
            user=str(load.trace.users[number]), cache=cache,
        )  # fmt: skip

    async def _answer(self, number: int, due: float) -> None:
        try:
            picture = await self._ask(number, self._steps[number], self._stand.cache)
        except AfterimageError as error:
            answer = Answer(number, time.monotonic() - due, error=str(error))
        else:
            answer = answer_of(number, picture, time.monotonic() - due)
            self._keep(number, picture.png)
        self._answers[number] = answer
        self._advance(1)

    async def _settled(self) -> None:
        """Wait until lookups can find the last answer (in turn), or every answer (at their arrivals).

        Raises AfterimageError in turn after SETTLE_S, because the next request would find an incomplete cache.
        """
        if self._stand.cache == "off":
            return
        jobs = [one.job for one in self._answers.values() if one.job]
        waiting = jobs[-1:] if self._load.one_at_a_time else jobs
        end = time.monotonic() + SETTLE_S
        while time.monotonic() < end:
            waiting = [job for job in waiting if not await self._is_in(job)]
            if not waiting and await self._all_know():
                return
            await asyncio.sleep(0.01)
        if self._load.one_at_a_time:
            raise AfterimageError(
                f"job {jobs[-1]} was not in the cache within {SETTLE_S:g} s; the services' log has the reason"
            )

    async def _is_in(self, job: str) -> bool:
        """Return whether the job's entry is in the catalog and, if it is live, in the index."""
        backends = self._process.context.backends
        try:
            await backends.catalog.entries.get(job)
        except NotFoundError:
            return False
        live = await backends.catalog.entries.live([job])
        return not await backends.index.missing(list(live))

    async def _all_know(self) -> bool:
        """Return whether the match predictor knows every entry; with an image tier, whether every image is embedded;
        with a segmenter, whether every clip has masks, or a reason for having none."""
        backends, settings = self._process.context.backends, self._process.context.settings
        if settings.segmenter and await backends.catalog.jobs.to_segment(1):
            return False
        if settings.image_tier != "off":
            return not await backends.catalog.entries.unembedded(1)
        known = await self._predictor.Stats(match_predictor_pb2.StatsRequest(), timeout=SETTLE_S)
        return bool(known.entries == await backends.index.count())

    def _sitting(self, wall_s: float, processor_s: float, stats: Any) -> Sitting:
        answers = tuple(self._answers[number] for number in range(len(self._load.trace)))
        if all(one.error for one in answers[self._load.warmup :]):
            raise AfterimageError(f"no counted request was served; error of the last one: {answers[-1].error}")
        return Sitting(
            answers=answers,
            alone_s=self._alone_s,
            step_s=self._step_s,
            wall_s=wall_s,
            processor_s=processor_s,
            evicted=round(_evicted() - self._evicted_in_warmup),
            states=stats.states + stats.pictures,
            bytes=stats.bytes + stats.picture_bytes,
        )

    async def _stats(self) -> Any:
        return await self._maintainer.Stats(cache_maintainer_pb2.StatsRequest(), timeout=SETTLE_S)


def _evicted() -> float:
    """Return the number of states and images evicted in this process so far."""
    samples = [sample for metric in METRICS.evicted.collect() for sample in metric.samples]
    return sum(sample.value for sample in samples if sample.name.endswith("_total"))
