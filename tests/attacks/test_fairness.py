"""One tenant sends far more than the service can take: another tenant is not refused and waits for few of its jobs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos import common_pb2, gateway_pb2
from protos.common_pb2 import CACHE_MODE_OFF as OFF
from protos.gateway_pb2_grpc import GatewayServiceStub
from services.gateway.intake import PLANS_AT_ONCE
from services.gateway.lookup import Lookup
from shared.client import AsyncClient
from shared.domain.errors import OverloadedError
from shared.domain.identity import Role, issued, principal_of
from shared.domain.types import Job
from shared.runtime.settings import Settings
from tests.flows.house import house

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROWS, QUEUED, IMAGES, USERS = 2, 12, 6, 40


async def test_what_a_flooding_tenant_left_is_cancelled_and_others_jobs_stay(tmp_path: Path, tiny: Path) -> None:
    """Unary calls whose clients gave up: their callers know no id, so nobody can ask for these images."""
    settings = Settings(
        data_dir=tmp_path, listen="127.0.0.1:0", metrics_listen="", large="noop:?step_ms=20", max_rows=1,
        max_queued=4, encoder=str(tiny / "clip"), torch_threads=1, check_share=0.0,
    )  # fmt: skip
    request = gateway_pb2.GenerateRequest(request=common_pb2.Request(prompt="a fox", steps=100, cache=OFF))
    async with house(settings) as it, grpc.aio.insecure_channel(it.process.address) as channel:
        stub: Any = GatewayServiceStub(channel)
        running = asyncio.create_task(it.client.generate("a fox", steps=180, cache="off"))
        while not (jobs := (await it.client.list_jobs())[0]):
            await asyncio.sleep(0.01)
        await it.claimed(jobs[0].job.id)
        keyed, calls = [("tenant", "flood"), ("idempotency-key", "k")], list[Any]()
        for count, metadata in ((3, [("tenant", "flood")]), (1, keyed), (1, [("tenant", "quiet")])):
            calls += [stub.Generate(request, metadata=metadata, timeout=30.0) for _ in range(count)]
            async with asyncio.timeout(10.0):
                while await it.backends.catalog.jobs.queued() < len(calls):
                    await asyncio.sleep(0.01)
        for call in calls:
            call.cancel()
        async with asyncio.timeout(10.0):
            while (await it.backends.catalog.jobs.queued_by_tenant()) != {"flood": 1, "quiet": 1}:
                await asyncio.sleep(0.01)
        running.cancel()


async def test_a_flood_of_plans_waits_inside_its_tenant(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans take no place in the queue; a flood of them kept the embedder from the requests of others."""
    settings = Settings(
        data_dir=tmp_path, listen="127.0.0.1:0", metrics_listen="", large="noop:", encoder=str(tiny / "clip"),
        torch_threads=1, check_share=0.0,
    )  # fmt: skip
    planning, whole = dict[int, str](), Lookup.plan

    async def slow(self: Lookup, requests: Any, *given: Any, **options: Any) -> Any:
        planning[requests[0].seed] = tenant = requests[0].tenant
        if tenant == "flood":
            await asyncio.sleep(60.0)
        return await whole(self, requests, *given, **options)

    monkeypatch.setattr(Lookup, "plan", slow)
    async with house(settings) as it, grpc.aio.insecure_channel(it.process.address) as channel:
        stub: Any = GatewayServiceStub(channel)

        def plan(tenant: str, seed: int) -> Any:
            asked = gateway_pb2.PlanRequest(request=common_pb2.Request(prompt="a fox", steps=4, seed=seed))
            return stub.Plan(asked, metadata=[("tenant", tenant)], timeout=60.0)

        calls = [plan("flood", seed) for seed in range(3 * PLANS_AT_ONCE)]
        async with asyncio.timeout(10.0):
            while len(planning) < PLANS_AT_ONCE:
                await asyncio.sleep(0.01)
        assert (await asyncio.wait_for(plan("quiet", 1000), 10.0)).jobs
        assert len(planning) == PLANS_AT_ONCE + 1
        calls[min(planning)].cancel()
        async with asyncio.timeout(10.0):
            while len(planning) <= PLANS_AT_ONCE + 1:  # one that waited takes the turn
                await asyncio.sleep(0.01)
        for call in calls:
            call.cancel()


async def test_a_flood_of_one_tenant_delays_another_by_few_jobs(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row gives ten images a second; 40 users of the flood ask again as soon as they are refused."""
    monkeypatch.setattr("shared.service.door.EVERY_S", 0.05)
    settings = Settings(
        data_dir=tmp_path, listen="127.0.0.1:0", metrics_listen="", large="noop:?step_ms=10", max_rows=ROWS,
        max_queued=QUEUED, encoder=str(tiny / "clip"), torch_threads=1, check_share=0.0,
    )  # fmt: skip
    async with house(settings) as it:
        texts = {}
        for tenant in ("flood", "quiet"):
            key, texts[tenant] = issued(principal_of(tenant, tenant, [Role.USER]))
            await it.backends.catalog.keys.add(key, None)
        await asyncio.sleep(0.2)
        async with (
            AsyncClient(it.process.address, retry_s=0.0, api_key=texts["flood"]) as flooder,
            AsyncClient(it.process.address, retry_s=0.0, api_key=texts["quiet"]) as quiet,
        ):
            refused, ended = 0, asyncio.Event()

            async def flood() -> None:
                nonlocal refused
                while not ended.is_set():
                    try:
                        await flooder.generate("a fox", steps=10, cache="off")
                    except OverloadedError:
                        refused += 1
                        await asyncio.sleep(0.3)

            flooding = [asyncio.create_task(flood()) for _ in range(USERS)]
            while refused < USERS // 2:
                await asyncio.sleep(0.01)
            mine = [(await quiet.generate("a fox", steps=10, cache="off")).job for _ in range(IMAGES)]
            ended.set()
            await asyncio.gather(*flooding)
        jobs: list[Job] = (await it.backends.catalog.jobs.list(limit=1000))[0]
        rows = {job.id: job for job in jobs}
        floods = [job for job in jobs if job.request.tenant == "flood"]
        for job in (rows[view.id] for view in mine):
            overtaken_by = [one for one in floods if job.created_at < one.exposed_from < job.exposed_from]
            assert len(overtaken_by) <= ROWS, "its turn comes with the next free row"
