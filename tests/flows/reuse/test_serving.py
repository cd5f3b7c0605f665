"""The standard services that every gRPC client expects, and the numbers that operators read."""

from __future__ import annotations

import asyncio
import urllib.request
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from services.cli.embedded import announced, found_running
from shared.domain.errors import ConfigurationError, InvalidRequestError, UnavailableError
from shared.runtime import telemetry
from tests.flows.conftest import Make
from tests.flows.house import SLOW, house

GATEWAY = "afterimage.gateway.v1.GatewayService"


async def test_health_and_reflection_answer_on_the_public_port(make: Make) -> None:
    async with house(make(large="noop:")) as it, grpc.aio.insecure_channel(it.process.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for name in ("", GATEWAY):
            reply = await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        questions = [reflection_pb2.ServerReflectionRequest(list_services="")]
        answers = [answer async for answer in reflection.ServerReflectionInfo(iter(questions), timeout=5)]
        names = {service.name for service in answers[0].list_services_response.service}
        assert GATEWAY in names
        assert not [name for name in names if "cache_maintainer" in name]  # internal services stay internal


async def test_a_picture_is_read_once_and_while_its_row_is(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async with house(make(large="noop:")) as it:
        blobs, jobs, reads, begun = it.backends.blobs, it.backends.catalog.jobs, list[str](), asyncio.Event()
        get_blob, get_row = blobs.get, jobs.get

        async def noted(key: str, sha256: str = "") -> bytes:
            if key.startswith("pictures/"):
                reads.append(key)
                begun.set()
            return bytes(await get_blob(key, sha256))

        async def waits_for_the_picture(job_id: str) -> Any:
            row = await get_row(job_id)
            if row.state.final:
                await asyncio.wait_for(begun.wait(), 5)  # it is being read already
            return row

        monkeypatch.setattr(blobs, "get", noted)
        monkeypatch.setattr(jobs, "get", waits_for_the_picture)
        picture = await it.client.generate("a red fox", steps=5)
        assert picture.png
        assert len(reads) == 1


async def test_metrics_count_what_was_drawn(make: Make) -> None:
    with telemetry.serving_metrics("127.0.0.1:0") as port:
        async with house(make()) as it:
            await it.generate("a red fox", seed=1)
            await it.generate("a red fox", seed=1)
            with pytest.raises(InvalidRequestError):
                await it.generate("")
        text = await asyncio.to_thread(read, f"http://127.0.0.1:{port}/metrics")
    assert 'afterimage_rpc_seconds_count{code="INVALID_ARGUMENT",method="Generate"}' in text
    assert 'afterimage_requests_total{model="large",source="exact",status="succeeded"}' in text
    assert 'afterimage_stage_seconds_count{stage="plan"}' in text
    assert "a red fox" not in text  # prompts are never labels


async def test_the_queue_s_length_is_counted_when_it_is_asked_for(make: Make) -> None:
    """Not when a request arrives: what left since would still be shown."""

    async def shown(port: int) -> float:
        text = await asyncio.to_thread(read, f"http://127.0.0.1:{port}/metrics")
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("afterimage_queued_jobs "))

    with telemetry.serving_metrics("127.0.0.1:0") as port:
        async with house(make(large=SLOW, max_rows=1, sweep_s=3600)) as it:
            asking = [asyncio.create_task(it.client.generate(f"fox {n}", steps=50, cache="off")) for n in range(4)]
            async with asyncio.timeout(20):
                while await shown(port) != 3:
                    await asyncio.sleep(0.05)
                assert await it.backends.catalog.jobs.queued() == 3
            await asyncio.gather(*asking)
            assert await shown(port) == 0


async def test_a_number_that_nobody_can_count_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("waiting", "Counted.", registry=registry)
    monkeypatch.setattr(telemetry, "COUNT_S", 0.1)

    async def away() -> int:
        raise UnavailableError("the catalog is away")

    async def silent() -> int:
        await asyncio.sleep(60)
        return 1

    async def ending() -> int:
        raise RuntimeError("cannot schedule new futures after shutdown")

    async def three() -> int:
        return 3

    for count, shown in ((away, "NaN"), (silent, "NaN"), (ending, "NaN"), (three, "3.0")):
        telemetry.counted_when_scraped(gauge, count)
        assert f"\nwaiting {shown}\n" in (await asyncio.to_thread(generate_latest, registry)).decode()
    assert "\nwaiting NaN\n" in generate_latest(registry).decode()  # on the loop, which cannot wait for itself


def test_a_metrics_port_that_is_taken_is_named() -> None:
    with telemetry.serving_metrics("127.0.0.1:0") as port, pytest.raises(ConfigurationError, match="metrics_listen"):
        telemetry.serving_metrics(f"127.0.0.1:{port}").__enter__()


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as page:
        return str(page.read().decode())


async def test_the_data_directory_says_who_works_in_it(make: Make) -> None:
    settings = make(large="noop:")
    async with house(settings) as it:
        with announced(it.process, settings):
            facts = found_running(settings.data_dir)
            assert facts is not None
            assert facts["address"] == it.process.address
        assert found_running(settings.data_dir) is None
