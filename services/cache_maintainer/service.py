"""Turns finished jobs into cache entries in batches, enforces the cache's budgets, and serves its gRPC queries."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from typing import Any, ClassVar

import grpc

from protos import cache_maintainer_pb2 as pb
from protos import cache_maintainer_pb2_grpc as pb_grpc
from services.cache_maintainer.background_work import BackgroundWork
from services.cache_maintainer.cache_writes import Cache
from services.cache_maintainer.eviction.policies import state_store_of, window_of
from services.cache_maintainer.live_checks import EVERY_S, LiveChecks
from services.cache_maintainer.orphan_collector import Collector
from services.cache_maintainer.pictures import Pictures
from services.cache_maintainer.retry_schedule import RetrySchedule
from services.cache_maintainer.rpc_messages import (
    PAGE,
    checked_cells,
    erasure,
    jobs_to_erase,
    shown,
    stats,
    target_of,
    wanted,
)
from services.cache_maintainer.upkeep import Upkeep
from services.cache_maintainer.uses import Uses
from shared.bus import Subscription
from shared.domain.errors import AfterimageError, UnavailableError
from shared.domain.masks import Mask
from shared.domain.messages import JobQueued, JobSucceeded, Message, StateLost, StateUsed, VideoSegmented
from shared.models.card_lookup import served_card
from shared.runtime.audit import Outcome, recorded
from shared.runtime.telemetry import METRICS, log
from shared.service import Context
from shared.service.callers import MayCall
from shared.service.door import actor_of, calling
from shared.service.leadership import Leadership


class CacheMaintainerService(Upkeep, pb_grpc.CacheMaintainerServiceServicer):
    name: ClassVar[str] = "cache_maintainer"
    callers: ClassVar[MayCall] = {"gateway": {"Erase", "Stats", "Quality"}}

    async def start(self, context: Context) -> None:
        self._context = context
        self._leadership = Leadership(
            self.name, context.backends.catalog, context.clock, self._settings.maintainer_lease_s
        )
        self._work = BackgroundWork(self._leadership)
        # another replica may take the lease before this replica notices; from then on the fenced catalog rejects this
        # replica's writes
        self._backends = replace(context.backends, catalog=self._leadership.fenced)
        self._uses = Uses(context.backends.catalog)
        self._leads = False
        self._changing = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._standing = [asyncio.create_task(self._stand())]
        async with self._changing:
            if await self._leadership.renew():
                await self._lead()

    async def _stand(self) -> None:
        """Renew the lease, or wait until the current leader's lease ends.

        Taking over may take longer than a lease, so a separate task does that.
        """
        while not self._leadership.alone:
            await asyncio.sleep(self._leadership.every_s)
            held = await self._leadership.renew()
            if held != self._leads and not self._changing.locked():
                self._standing[1:] = [asyncio.create_task(self._change(held))]

    async def _change(self, held: bool) -> None:
        async with self._changing:
            log(self.name).info("leads" if held else "stands by")
            await (self._work.guarded(self._lead) if held else self._step_down())

    async def _lead(self) -> None:
        """Load the cache's contents from the catalog, which holds the work of earlier leaders, and start work."""
        context, settings = self._context, self._settings
        self._finished: asyncio.Queue[str] = asyncio.Queue()
        self._unembedded = asyncio.Event()
        self._unembedded.set()
        """Set while an image may be waiting for its embedding."""
        self._masks: dict[str, Mask] = {}
        self._mask_setbacks = RetrySchedule()
        self._behind = True
        """True when the catalog must be queried for uncached jobs: at the start, and after a batch that failed."""
        # looked up once: finding a model card may take a while
        self._large = (await asyncio.to_thread(served_card, settings)).name if settings.image_tier == "large" else ""
        states = await context.backends.catalog.entries.states(bare=True)
        shelf = state_store_of(settings, [one for one in states if not one.is_picture])
        self._pictures = Pictures(context, self._backends)
        self._checks = LiveChecks(context, self._backends)
        self.cache = Cache(
            self._backends,
            shelf,
            context.clock,
            max_bytes=settings.cache_max_bytes,
            grace_s=settings.blob_grace_s,
            check=self._leadership.check,
            pictures=window_of(settings, [one for one in states if one.is_picture]),
            pictures_of=self._pictures_of,
            end_checks=self._checks.end_all,
        )
        for entry_id, size in (await context.backends.catalog.entries.mask_sizes()).items():
            self.cache.held.masks.put(entry_id, size)
        self._collector = Collector(self._backends, context.clock, settings, self._leadership.check)
        self._subscription: Subscription = await context.backends.bus.subscribe(
            [JobSucceeded, StateUsed, StateLost, VideoSegmented, *([JobQueued] if settings.check_share else [])],
            self.handle,
            queue=self.name,
        )
        self._leads = True
        # the cache must free space even when one of these steps fails on a full disk
        self._first = [
            self.cache.recall_erasures, self.catch_up, self.cache.shrink, self.cache.measure, self._doubt_newest,
        ]  # fmt: skip
        await self._begin()
        self._tasks = [
            asyncio.create_task(self._batches()),
            asyncio.create_task(self._embed_pictures()),
            asyncio.create_task(self._work.every(settings.blob_grace_s / 2, self._tidy)),
            # collection also runs once soon after the start, for processes that never run long
            asyncio.create_task(self._work.every(settings.collect_s, self.collect, first_s=settings.blob_grace_s)),
            *([asyncio.create_task(self._work.every(EVERY_S, self._check_hits))] if settings.check_share else []),
        ]

    def _pictures_of(self, model: str) -> bool:
        """Return whether images of this model may start others: the large model's, or every model's (MoDM §A.6)."""
        return self._settings.image_tier == "all" or model == self._large

    async def _step_down(self) -> None:
        """Stop maintaining the cache.

        The next leader receives all later events. The catalog lists the work that this replica has not done.
        """
        self._leads = False
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._subscription.close()
        METRICS.checks_stopped.clear()  # the new leader's verdicts count
        try:
            await self._uses.write()  # no other replica received these uses
        except AfterimageError as error:  # kept until this replica leads again, or stops
            log(self.name).warning("uses not written", uses=len(self._uses), error=str(error))

    def register(self, server: grpc.aio.Server) -> str:
        pb_grpc.add_CacheMaintainerServiceServicer_to_server(self, server)
        return pb.DESCRIPTOR.services_by_name["CacheMaintainerService"].full_name

    async def drain(self) -> None:
        if self._leads:
            await self._subscription.close()
            await self.flush()

    async def stop(self) -> None:
        for task in (*self._standing, *self._tasks):
            task.cancel()
        await asyncio.gather(*self._standing, *self._tasks, return_exceptions=True)
        if not self._leads:
            return
        if self._context.backends.bus.process_local:  # every reader of blobs runs in this process and has drained
            await self._work.guarded(self._delete_unread)
        await self._leadership.give_up()  # last: after this, this replica deletes nothing

    # ---- events ----

    async def handle(self, message: Message) -> None:
        match message:
            case JobSucceeded(job_id=job_id):
                if not self._checks.finished(job_id):
                    self._finished.put_nowait(job_id)
            case JobQueued():
                await self._checks.queued()
            case StateUsed(entry_id=entry_id, step=step):
                at = self._context.clock.now()
                for name, read in self.cache.held.of(step).read_with((entry_id, step)):
                    self.cache.held.use(name, read, at)
                    self._uses.add(name, read, at)
            case StateLost(entry_id=entry_id, step=step, key=key):
                await self.cache.lose(entry_id, step, key)
            case VideoSegmented(job_id=job_id, mask_key=key, sha256=sha256, bytes=size):
                await self._segmented(job_id, Mask(key, sha256, size))
            case _:
                return

    async def flush(self) -> None:
        """Insert every job received so far, and write the uses; failures are retried within `blob_grace_s`."""
        try:
            await self._insert_heard()
        finally:
            await self._uses.write()

    async def _insert_heard(self) -> None:
        while not self._finished.empty():
            count = min(self._finished.qsize(), self._settings.cache_batch_max)
            jobs = [self._finished.get_nowait() for _ in range(count)]
            try:
                await self._insert(jobs)
            except BaseException:
                # the catalog lists these jobs until they are cached, so none is lost
                self._behind = True
                raise

    async def _batches(self) -> None:
        """Insert one batch at most `cache_batch_s` seconds after its first job."""
        while True:
            self._finished.put_nowait(await self._finished.get())  # wait for the first job, and leave it in the queue
            await asyncio.sleep(self._settings.cache_batch_s)
            await self._work.guarded(self.flush)

    async def _embed_pictures(self) -> None:
        """Embed images in large batches, apart from insertion.

        A job that refines an image starts from the image's latents. Those jobs should not compete with the embedder for
        the machine.
        """
        while True:
            await self._unembedded.wait()
            await asyncio.sleep(self._settings.picture_batch_s)
            self._unembedded.clear()
            await self._work.guarded(self._embed_all)

    async def _embed_all(self) -> None:
        if self.cache.pictures is not None:
            await self._pictures.embed_waiting(self.cache)

    async def _check_hits(self) -> None:
        await self._checks.check_waiting()

    # ---- gRPC ----

    def _check_leads(self) -> None:
        if not self._leads:
            raise UnavailableError(
                "this cache_maintainer replica is a standby; point AFTERIMAGE_CACHE_MAINTAINER_ADDRESS at the leader",
                retry_after_s=1.0,
            )

    def _recorded(
        self, context: Any, action: str, target: str = "", actor: str = ""
    ) -> AbstractContextManager[Outcome]:
        return recorded(self._settings.data_dir, actor=actor or actor_of(context), action=action, target=target)

    async def Stats(self, request: pb.StatsRequest, context: Any) -> pb.StatsResponse:
        self._check_leads()
        totals = await self._context.backends.catalog.entries.totals()
        return stats(self.cache, totals, self._settings.cache_max_bytes)

    async def Purge(self, request: pb.PurgeRequest, context: Any) -> pb.PurgeResponse:
        what = request.WhichOneof("what")
        with self._recorded(context, "purge", f"{what} {getattr(request, what)}" if what else "") as outcome:
            self._check_leads()
            await self._work.guarded(self.flush)  # flush fails on a full disk; the purge must still run
            removed = await self.cache.purge(await wanted(request, self._context.backends.catalog.entries))
            outcome.said = f"{removed.entries} entries removed"
        return pb.PurgeResponse(entries=removed.entries, states=removed.states, bytes=removed.bytes)

    async def Erase(self, request: pb.EraseRequest, context: Any) -> pb.EraseResponse:
        with self._recorded(context, "erase", target_of(request), _asked_by(request, context)) as outcome:
            self._check_leads()
            job_ids = await jobs_to_erase(request, self._backends.catalog.erasing)
            erased = await self.cache.erase(job_ids, request.tenant)
            outcome.said = f"jobs: {erased.removed.get('jobs', (0, 0))[0]}{', a part failed' if erased.left else ''}"
        return pb.EraseResponse(erasure=erasure(erased))

    async def Collect(self, request: pb.CollectRequest, context: Any) -> pb.CollectResponse:
        with self._recorded(context, "collect" if request.confirmed else "collect, only look"):
            self._check_leads()
            found = await self._collector.collect(confirmed=request.confirmed, only_look=not request.confirmed)
        return pb.CollectResponse(**asdict(found), quarantine_s=self._settings.quarantine_s)

    async def Quality(self, request: pb.QualityRequest, context: Any) -> pb.QualityResponse:
        # the figures name no caller, and the console reads them every few seconds
        noted = self._recorded(context, "quality reset", request.model) if request.reset else nullcontext()
        with noted:
            self._check_leads()
            records = await self._checks.records(request.model, reset=request.reset)
        return pb.QualityResponse(cells=checked_cells(records), check_share=self._settings.check_share)

    async def Inspect(self, request: pb.InspectRequest, context: Any) -> pb.InspectResponse:
        with self._recorded(context, "inspect", request.entry_id or "a page of entries"):
            self._check_leads()
            entries = self._context.backends.catalog.entries
            if request.entry_id:
                return pb.InspectResponse(entries=[shown(await entries.get(request.entry_id), self.cache.held)])
            page, after = await entries.page(min(request.page_size or 20, PAGE), request.page_token)
        return pb.InspectResponse(entries=[shown(entry, self.cache.held) for entry in page], next_page_token=after)


def _asked_by(request: pb.EraseRequest, context: Any) -> str:
    """Return who asked, for the audit log: the caller that a gateway names, beside a gateway's address outside of this
    process. A caller with a key speaks for itself."""
    peer = actor_of(context)
    if not request.actor or calling().subject:
        return peer
    return request.actor if context.peer().startswith("unix:") else f"{request.actor}, says {peer}"
