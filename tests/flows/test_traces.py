"""One request is one trace, from the client's call to the stored image and the cache, at a real OTLP receiver."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from protos.gateway_pb2 import GenerateRequest
from shared.client import AsyncClient
from shared.domain.errors import AfterimageError
from tests.collector import Collector, attributes, collector
from tests.flows.conftest import Make
from tests.flows.house import house

GENERATE = "afterimage.gateway.v1.GatewayService/Generate"
EMBED, PREDICT, PLAN = (
    "afterimage.embedder.v1.EmbedderService/EmbedText",
    "afterimage.match_predictor.v1.MatchPredictorService/Predict",
    "afterimage.retriever.v1.RetrieverService/Plan",
)
WORK = "process generate.noop"
STAGES = ("load state", "encode prompt", "denoise", "decode", "store")
TREE = {
    *((GENERATE, name) for name in (EMBED, PREDICT, PLAN, "send generate.noop")),
    *((name, name) for name in (EMBED, PREDICT, PLAN)),  # the client's span, and the server's
    ("send generate.noop", WORK),
    *((WORK, name) for name in (*STAGES, "publish JobSucceeded")),
    ("publish JobSucceeded", "process JobSucceeded"),
}
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{CALLER}-01", f"00-{TRACE}-{CALLER}-00"


@pytest.fixture
async def receiver(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    async with collector() as it:
        yield it


async def test_one_request_is_one_tree(make: Make, receiver: Collector) -> None:
    async with house(make(large="noop:", trace_endpoint=receiver.address, trace_ratio=1.0)) as home:
        await home.generate("a red fox")
        picture = await home.client.generate("a red fox", steps=10, variation="same")
        assert picture.plan.start_step > 0
    root = [span for span in receiver.spans if span.name == GENERATE][-1]
    it = receiver.of(root.trace_id)
    assert it.edges == {("", GENERATE), *TREE}
    assert {attributes(span)["rpc.system.name"] for span in it.spans if "Service/" in span.name} == {"grpc"}
    assert attributes(it.one(GENERATE))["afterimage.job.ids"] == [picture.job.id]
    assert attributes(it.one(WORK))["afterimage.job.id"] == picture.job.id
    assert attributes(it.one(WORK))["messaging.system"] == "inprocess"
    assert attributes(it.one("load state"))["afterimage.plan.source"] == "latent"
    assert attributes(it.one("denoise"))["afterimage.start_step"] == picture.plan.start_step
    times = [it.one(name).start_time_unix_nano for name in STAGES]
    assert times == sorted(times)
    subscribers = {
        attributes(span)["messaging.destination.subscription.name"]
        for span in it.spans
        if span.name == "process JobSucceeded"
    }
    assert subscribers == {"cache_maintainer", "segmenter"}
    service = {one.key: one.value.string_value for one in receiver.requests[0].resource_spans[0].resource.attributes}
    assert (service["service.namespace"], service["service.name"]) == ("afterimage", "afterimage")


async def test_the_trace_of_a_caller_goes_on(make: Make, receiver: Collector) -> None:
    given = {"trace_endpoint": receiver.address, "trace_ratio": 0.0, "http_listen": "127.0.0.1:0"}
    async with house(make(large="noop:", **given)) as home:
        asked = GenerateRequest(request={"prompt": "a red fox", "steps": 10})
        body = {"prompt": "a blue fox", "size": "64x64"}
        url = f"{home.process.http_address}/v1/images/generations"
        async with httpx.AsyncClient(timeout=20.0) as http:
            for parent in ("", UNSAMPLED, SAMPLED):
                headers = {"traceparent": parent} if parent else {}
                await home.client._stub.Generate(asked, timeout=20.0, metadata=tuple(headers.items()))
                (await http.post(url, json=body, headers=headers)).raise_for_status()
    assert {span.trace_id.hex() for span in receiver.spans} == {TRACE}
    roots = [span for span in receiver.spans if span.parent_span_id.hex() == CALLER]
    assert {span.name for span in roots} == {GENERATE, "POST /v1/images/generations"}
    posted = attributes(receiver.one("POST /v1/images/generations"))
    assert posted["http.route"] == "/v1/images/generations"
    assert (posted["http.request.method"], posted["http.response.status_code"]) == ("POST", 200)
    assert len(posted["afterimage.job.ids"]) == 1
    assert ("POST /v1/images/generations", "send generate.noop") in receiver.edges
    assert len([span for span in receiver.spans if span.name == "store"]) == 2


async def test_no_attribute_has_what_a_client_wrote(make: Make, receiver: Collector) -> None:
    canary = "wombat"
    given = {"trace_endpoint": receiver.address, "trace_ratio": 1.0, "http_listen": "127.0.0.1:0"}
    async with house(make(large="noop:", **given)) as home:
        await home.client.generate(f"a red {canary}", negative_prompt=canary, user=canary, steps=10)
        for wrong in ({"size": canary}, {canary: 1}, {"model": canary}):
            async with httpx.AsyncClient(base_url=home.process.http_address) as http:
                headers = {"authorization": f"Bearer {canary}", "cookie": canary, "user-agent": canary}
                path = f"/v1/pictures/{canary}?{canary}={canary}" if "model" in wrong else "/v1/images/generations"
                assert (await http.post(path, json={"prompt": canary, **wrong}, headers=headers)).is_client_error
        async with AsyncClient(home.process.address, api_key=canary, retry_s=0.0) as client:
            with pytest.raises(AfterimageError):
                await client.generate(canary, quality=canary)
    assert {"store", "POST", "POST /v1/images/generations", GENERATE} <= {span.name for span in receiver.spans}
    assert canary not in str(receiver.requests)


async def test_a_collector_that_is_away_fails_no_request(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    monkeypatch.setattr("shared.runtime.tracing.otlp.CLOSE_S", 0.2)
    async with house(make(large="noop:", trace_endpoint="http://127.0.0.1:9", trace_ratio=1.0)) as home:
        assert (await home.client.generate("a red fox", steps=10)).png
