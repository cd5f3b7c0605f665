"""When the maintainer embeds pictures, how many at once, and what it does while the embedder is away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import grpc
import pytest

from protos import embedder_pb2
from services.cache_maintainer.service import CacheMaintainerService
from services.embedder.service import EmbedderService
from shared.domain.errors import DeadlineError, UnavailableError
from shared.domain.messages import JobSucceeded
from shared.runtime.settings import Settings
from shared.service import Context, running
from tests.unit.cache_maintainer.house import Home, home, png
from tests.unit.cached import MODEL, finished_job, measured, request, unit


async def test_pictures_that_waited_for_the_embedder_are_embedded_at_the_next_start(settings: Settings) -> None:
    alone = settings.model_copy(update={"large": MODEL, "cache_batch_s": 0.0})
    async with running([CacheMaintainerService()], alone) as process:
        job = await finished_job(process.context.backends, request("a"), unit(1), picture=png(1), steps=())
        await process.context.backends.bus.publish(JobSucceeded(job.id, 1))
        async with asyncio.timeout(10):
            while not await process.context.backends.catalog.entries.unembedded():
                await asyncio.sleep(0.01)
    async with home(settings) as here:
        await here.embedded()
        # the prompt's encoder is another one: no text of this one's would be compared with it
        assert await here.found(1) == []
        assert (await here.backends.catalog.entries.get(job.id)).picture is None
        late = await here.finish("b", 2, steps=())
        await here.embedded()
        assert await here.found(2) == [late.id]


async def waiting(settings: Settings, pictures: Sequence[bytes]) -> list[str]:
    """The ids of entries whose pictures wait for the embedder, in the order in which they will be listed."""
    alone = settings.model_copy(update={"large": MODEL, "cache_batch_s": 0.0})
    async with running([CacheMaintainerService()], alone) as process:
        backends = process.context.backends
        for number, data in enumerate(pictures):
            job = await finished_job(backends, request(f"p{number}"), None, picture=data, steps=(), encoder="")
            await backends.bus.publish(JobSucceeded(job.id, 1))
        async with asyncio.timeout(10):
            while len(listed := await backends.catalog.entries.unembedded()) < len(pictures):
                await asyncio.sleep(0.01)
        return [entry.id for entry in listed]


async def test_pictures_too_large_for_one_message_go_in_several_and_one_too_large_alone_holds_up_none(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.cache_maintainer.pictures.AT_A_TIME", 8)
    huge, small = png(0, 160), [png(seed) for seed in range(1, 9)]
    settings = settings.model_copy(update={"max_message_bytes": 2**16})
    assert len(huge) > 2**16
    assert sum(len(data) for data in small[:7]) > 2**16  # of the first page
    ids = await waiting(settings, [huge, *small])
    async with home(settings) as here:

        async def the_others_are() -> bool:
            return [entry.id for entry in await here.backends.catalog.entries.unembedded()] == ids[:1]

        await here.until(the_others_are)
        assert (await here.backends.catalog.entries.get(ids[0])).picture is not None  # a larger limit may come
        late = await here.finish("late", 9)
        await here.until(the_others_are)
        assert await here.found(9) == [late.id]


async def test_what_the_embedder_fails_on_costs_only_itself_and_is_put_off(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, embed, bad = list[int](), EmbedderService.EmbedImage, png(2)

    async def failing(self: EmbedderService, request: embedder_pb2.EmbedImageRequest, context: Any) -> Any:
        calls.append(len(request.images))
        if bad in request.images:
            raise DeadlineError
        return await embed(self, request, context)

    ids = await waiting(settings, [png(seed) for seed in range(4)])
    monkeypatch.setattr(EmbedderService, "EmbedImage", failing)
    async with home(settings) as here:

        async def one_is_left() -> bool:
            return [entry.id for entry in await here.backends.catalog.entries.unembedded()] == [ids[2]]

        await here.until(one_is_left)
        assert calls == [4, 2, 2, 1, 1]
        assert await here.maintainer._pictures.embed_all(here.maintainer.cache) == 0
        assert len(calls) == 5


class SlowStart:
    """A service whose weights take longer to load than one attempt to connect may take."""

    name: ClassVar[str] = "slow"
    ports: ClassVar[frozenset[str]] = frozenset()

    async def start(self, context: Context) -> None:
        await asyncio.sleep(4.0)

    def register(self, server: grpc.aio.Server) -> None:
        return None

    async def drain(self) -> None:
        return

    async def stop(self) -> None:
        return


async def test_a_start_that_takes_long_puts_nothing_off(settings: Settings, logs: list[dict[str, Any]]) -> None:
    settings = settings.model_copy(update={"large": MODEL, "picture_batch_s": 0.0})
    await measured(settings)
    maintainer = CacheMaintainerService()
    async with running([SlowStart(), EmbedderService(), maintainer], settings):
        async with asyncio.timeout(60):
            while maintainer._pictures.behind:
                await asyncio.sleep(0.01)
    assert [one for one in logs if one["event"] == "cache maintenance postponed"] == []


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pictures each call to the embedder holds, from now on."""
    calls, embed = list[int](), EmbedderService.EmbedImage

    async def counting(self: EmbedderService, request: embedder_pb2.EmbedImageRequest, context: Any) -> Any:
        calls.append(len(request.images))
        return await embed(self, request, context)

    monkeypatch.setattr(EmbedderService, "EmbedImage", counting)
    return calls


async def looked_through(here: Home) -> None:
    """Until the catalog was asked what waits, as it is at a start."""

    async def is_not_behind() -> bool:
        return not here.maintainer._pictures.behind

    await here.until(is_not_behind)


async def embed_now(here: Home) -> None:
    """As `picture_batch_s` after the first of them came."""
    await here.maintainer._embed_all()


async def test_pictures_that_come_together_are_embedded_together_and_the_catalog_is_not_asked_which(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counted(monkeypatch)
    async with home(settings, picture_batch_s=3600.0) as here:
        await embed_now(here)  # from now on it knows what waits
        monkeypatch.setattr(here.maintainer._pictures, "embed_all", None)
        jobs = [await here.finish(f"p{seed}", seed) for seed in (1, 2, 3)]
        assert calls == []  # they wait for each other
        await embed_now(here)
        await here.embedded()
        assert calls == [3]
        assert [await here.found(seed) for seed in (1, 2, 3)] == [[job.id] for job in jobs]


async def test_more_pictures_than_are_remembered_are_looked_for_in_the_catalog(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.cache_maintainer.pictures.REMEMBERED", 1)
    async with home(settings, picture_batch_s=3600.0) as here:
        await embed_now(here)  # from now on it knows what waits
        jobs = [await here.finish(f"p{seed}", seed) for seed in (1, 2, 3)]
        await embed_now(here)
        await here.embedded()
        assert [await here.found(seed) for seed in (1, 2, 3)] == [[job.id] for job in jobs]


async def test_a_picture_that_leaves_while_it_waits_is_not_embedded(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counted(monkeypatch)
    async with home(settings, picture_batch_s=3600.0, picture_max_count=1) as here:
        await embed_now(here)
        for seed in (1, 2):
            await here.finish(f"p{seed}", seed)
        await embed_now(here)
        await here.embedded()
        assert calls == [1]
        assert len(await here.found(2)) == 1


async def test_what_waited_while_the_embedder_was_away_is_embedded_when_the_cache_is_tidied(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_away, embed = True, EmbedderService.EmbedImage

    async def sometimes(self: EmbedderService, request: embedder_pb2.EmbedImageRequest, context: Any) -> Any:
        if is_away:
            raise UnavailableError
        return await embed(self, request, context)

    monkeypatch.setattr(EmbedderService, "EmbedImage", sometimes)
    async with home(settings) as here:
        await looked_through(here)
        job = await here.finish("a", 1)

        async def is_behind() -> bool:
            return here.maintainer._pictures.behind

        await here.until(is_behind)
        is_away = False
        await here.maintainer._tidy()
        await here.embedded()
        assert await here.found(1) == [job.id]


async def test_an_embedder_that_is_away_is_asked_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[int]()

    async def away(self: EmbedderService, request: embedder_pb2.EmbedImageRequest, context: Any) -> Any:
        calls.append(len(request.images))
        raise UnavailableError

    await waiting(settings, [png(seed) for seed in range(4)])
    monkeypatch.setattr(EmbedderService, "EmbedImage", away)
    async with home(settings) as here:

        async def asked() -> bool:
            return bool(calls)

        await here.until(asked)
        await asyncio.sleep(0.1)
        assert calls == [4]
