"""One tenant takes calls, jobs, work and cache without end: it is held at its limits, and its neighbours are not."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
import pytest_asyncio

from protos import gateway_pb2
from shared.catalog.jobs.lanes import Taken
from shared.client import AsyncClient
from shared.domain.errors import CancelledError, InvalidRequestError, OverloadedError, RateLimitError
from shared.domain.identity import Role, issued, principal_of
from shared.runtime.settings import Settings
from shared.service.open_calls import OpenCalls
from tests.flows.house import House, house

pytestmark = pytest.mark.asyncio(loop_scope="session")

LIMITS = {
    "*": {"jobs": 4},
    "callers": {"rate": "6/min"},
    "streamers": {"calls": 2, "jobs": None},
    "painters": {"pixel_steps": 64 * 64 * 1000},
    "hoarders": {"cache_bytes": 40_000, "jobs": None},
    "repeaters": {"kept_jobs": 3},
}
TENANTS = [*LIMITS][1:]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def limited(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> AsyncIterator[tuple[House, dict[str, str]]]:
    given: dict[str, Any] = {"large": "noop:?step_ms=20", "encoder": str(tiny / "clip"), "torch_threads": 1}
    given |= {"data_dir": tmp_path_factory.mktemp("limited"), "listen": "127.0.0.1:0", "metrics_listen": ""}
    given |= {"allow_anonymous": "never", "tenant_limits": LIMITS, "blob_grace_s": 0.2, "collect_s": 0.5, "max_rows": 4}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shared.service.door.EVERY_S", 0.05)
        patch.setattr("services.cache_maintainer.upkeep.LEAST_KEPT_S", 1.0)
        async with house(Settings(**given)) as it:
            keys = {}
            for tenant in (*TENANTS, "others"):
                key, keys[tenant] = issued(principal_of(tenant, tenant, [Role.USER]))
                await it.backends.catalog.keys.add(key, None)
            await asyncio.sleep(0.3)
            yield it, keys


Limited = tuple[House, dict[str, str]]


def client(limited: Limited, tenant: str) -> AsyncClient:
    it, keys = limited
    return AsyncClient(it.process.address, retry_s=0.0, api_key=keys[tenant])


async def test_two_keys_of_a_tenant_share_its_rate(limited: Limited) -> None:
    it, keys = limited
    key, keys["second"] = issued(principal_of("callers", "second", [Role.USER]))
    await it.backends.catalog.keys.add(key, None)
    await asyncio.sleep(0.3)
    async with client(limited, "callers") as one, client(limited, "second") as two:
        ends = await asyncio.gather(
            *(each.list_jobs() for _ in range(20) for each in (one, two)), return_exceptions=True
        )
    refused = [end for end in ends if isinstance(end, OverloadedError)]
    assert 35 <= len(refused) <= 39  # one call every ten seconds
    assert "this tenant sends more than its rate of 6/min, burst 1" in str(refused[0])


async def test_streams_left_open_are_counted(limited: Limited) -> None:
    async with client(limited, "streamers") as greedy, client(limited, "others") as other:
        streams = [greedy.generate_stream("a fox", steps=1000, cache="off", seed=seed) for seed in range(2)]
        for stream in streams:
            await anext(stream)
        with pytest.raises(OverloadedError, match="this tenant has 2 calls open, which is its limit"):
            await greedy.list_jobs()
        await other.list_jobs()
        gc.disable()  # a closed stream ends its call itself
        try:
            for stream in streams:
                await stream.aclose()
            async with asyncio.timeout(10.0):
                while True:
                    try:
                        left, _ = await greedy.list_jobs()
                        break
                    except OverloadedError:
                        await asyncio.sleep(0.02)
        finally:
            gc.enable()
        for job in left:  # so that the server's end does not wait for them
            await greedy.cancel(job.job.id)


async def test_answers_that_nobody_reads_are_counted(limited: Limited) -> None:
    """A call counted until its handler returned, so a client could leave any number of images to the server's
    memory."""
    it, keys = limited
    metadata = (("authorization", f"Bearer {keys['streamers']}"),)
    async with client(limited, "streamers") as greedy:
        picture = await greedy.generate("a fox", steps=1, cache="off")
        await _room_for(greedy, 2)
        narrow = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]  # of the window for unread bytes
        async with grpc.aio.insecure_channel(it.process.address, options=narrow) as channel:
            get = channel.unary_stream("/afterimage.gateway.v1.GatewayService/GetJob")  # looks the same to the server
            asked = gateway_pb2.GetJobRequest(job_id=picture.job.id, picture=True).SerializeToString()
            unread = [get(asked, metadata=metadata) for _ in range(2)]
            await asyncio.gather(*(call.initial_metadata() for call in unread))
            for _ in range(2):
                with pytest.raises(OverloadedError, match="this tenant has 2 calls open, which is its limit"):
                    await greedy.list_jobs()
            assert await unread[0].read()
            await _room_for(greedy, 1)
            unread[1].cancel()


async def _room_for(greedy: AsyncClient, calls: int) -> None:
    """Wait until so many calls run at once: the server may learn later than the client that an answer is read."""
    async with asyncio.timeout(10.0):
        while True:
            try:
                await asyncio.gather(*(greedy.list_jobs() for _ in range(calls)))
            except OverloadedError:
                await asyncio.sleep(0.02)
            else:
                return


async def test_a_call_beyond_the_limit_is_reported_by_its_name() -> None:
    """The log named the tenant in the call's place."""
    said = list[str]()
    calls = OpenCalls("", lambda tenant: 1, lambda error, call: said.append(call))
    key, _ = issued(principal_of("streamers", "a", [Role.USER]))
    with calls.noted(key, "GenerateStream"), pytest.raises(RateLimitError), calls.noted(key, "ListJobs"):
        pass
    assert said == ["ListJobs"]


async def test_an_upload_beyond_the_limit_says_why_however_large_it_is() -> None:
    """Its client reported an error of its own at times: the call ended while it was sending."""
    unread, codes = list[bytes](), list[grpc.StatusCode]()
    context = Mock(set_code=codes.append)

    async def parts() -> AsyncIterator[bytes]:
        while unread:
            yield unread.pop()

    async def answers(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        yield b""

    async def answer(requests: AsyncIterator[bytes], context: Any) -> bytes:
        return b""

    calls, (key, _) = OpenCalls("", lambda tenant: 0), issued(principal_of("streamers", "a", [Role.USER]))
    streaming: Any = calls.under(key, grpc.stream_stream_rpc_method_handler(answers), "GenerateFromImage")
    single: Any = calls.under(key, grpc.stream_unary_rpc_method_handler(answer), "PlanFromImage")
    unread[:] = [b"part"] * 3
    assert [one async for one in streaming.stream_stream(parts(), context)] == []
    assert not unread
    unread[:] = [b"part"] * 3
    assert await single.stream_unary(parts(), context) is None
    assert not unread
    assert codes == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 2


async def test_work_in_flight_is_bounded_and_ends_free_it(limited: Limited) -> None:
    jobs = limited[0].backends.catalog.jobs
    async with client(limited, "painters") as painter, client(limited, "others") as other:
        with pytest.raises(InvalidRequestError, match=r"n: |steps: .* must be at most 4096000 for this tenant"):
            await painter.generate_images("a fox", 2, steps=600, cache="off")
        first = asyncio.create_task(painter.generate("a fox", steps=900, cache="off"))
        while not (found := (await painter.list_jobs())[0]):
            await asyncio.sleep(0.01)
        with pytest.raises(OverloadedError, match="on their way, 3686400 and may have 4096000"):
            await painter.generate("a fox", steps=101, cache="off")
        assert (await painter.generate("a fox", steps=10, cache="off")).png
        assert (await other.generate("a fox", steps=101, cache="off")).png
        await painter.cancel(found[0].job.id)
        with pytest.raises(CancelledError):
            await first
        assert await jobs.taken("painters") == Taken()


async def test_jobs_are_bounded_for_every_tenant_without_a_limit_of_its_own(limited: Limited) -> None:
    it, _ = limited
    async with client(limited, "others") as other, client(limited, "streamers") as free:
        tasks = [asyncio.create_task(other.generate("a fox", steps=1000, cache="off", seed=seed)) for seed in range(6)]
        done, waiting = set[asyncio.Task[Any]](), set(tasks)
        while len(done) < 2:
            ended, waiting = await asyncio.wait(waiting, timeout=10.0, return_when=asyncio.FIRST_COMPLETED)
            assert ended
            done |= ended
        for task in done:
            with pytest.raises(OverloadedError, match=r"jobs that wait or run: .* on their way, . and may have 4"):
                await task
        assert (await it.backends.catalog.jobs.taken("others")).jobs <= 4
        with pytest.raises(InvalidRequestError, match="n: must be at most 4, the jobs of this tenant"):
            await other.generate_images("a fox", 5, steps=2, cache="off")
        async with asyncio.timeout(10.0):
            # the limit also counts jobs that are not in the catalog yet
            while len(jobs := (await other.list_jobs())[0]) < sum(not task.done() for task in waiting):
                await asyncio.sleep(0.02)
        for job in jobs:
            await other.cancel(job.job.id)
        assert (await free.generate("a fox", steps=2, cache="off")).png
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(end, CancelledError) for end in ends)


async def test_the_cache_of_a_tenant_shrinks_to_its_bytes(limited: Limited) -> None:
    """An entry of ten steps has 12 kB: three fit."""
    it, _ = limited
    entries = it.backends.catalog.entries
    async with client(limited, "hoarders") as hoarder, client(limited, "others") as other:
        kept = await other.generate("a whale in the sea", steps=10, variation="same")
        made = [await hoarder.generate(f"a fox number {seed}", steps=10, seed=seed, cache="write") for seed in range(8)]
        ids = [one.job.id for one in (kept, *made)]
        async with asyncio.timeout(20.0):
            while True:
                if len(await entries.by_ids(ids)) == 9 and (await entries.bytes_by_tenant())["hoarders"] <= 40_000:
                    break
                await asyncio.sleep(0.05)
        cached = await entries.by_ids(ids)
        assert [bool(cached[one.job.id].states) for one in made] == [False] * 5 + [True] * 3
        assert cached[kept.job.id].states
        assert (await hoarder.generate("a fox number 0", steps=10, seed=0)).plan.source == "exact"


async def test_the_rows_of_repeats_are_bounded(limited: Limited) -> None:
    """A repeat costs no step, and each left a row for seven days."""
    async with client(limited, "repeaters") as repeater, client(limited, "others") as other:
        kept = await other.generate("a heron at a pond", steps=10, cache="off")
        made = [await repeater.generate("a heron at a pond", steps=10, seed=3) for _ in range(8)]
        assert {one.plan.source for one in made[1:]} == {"exact"}
        async with asyncio.timeout(20.0):
            while len(left := (await repeater.list_jobs())[0]) > 3:
                await asyncio.sleep(0.05)
        assert {view.job.id for view in left} == {one.job.id for one in made[-3:]}
        assert (await other.get_job(kept.job.id)).job.id == kept.job.id
