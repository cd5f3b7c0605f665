"""Images by OpenAI's own client: one, several, streamed, by address, in each format."""

from __future__ import annotations

import base64
import io
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

from services.gateway.http import pictures
from tests.flows.house import House

pytestmark = pytest.mark.asyncio(loop_scope="session")

OURS: dict[str, Any] = {"num_inference_steps": 10, "seed": 7}


def shown(image: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(image)))


async def test_an_image_says_where_it_came_from(sdk: openai.AsyncOpenAI, served: House) -> None:
    first = await sdk.images.generate(prompt="a red fox", extra_body=OURS)
    again = await sdk.images.generate(prompt="a red fox", extra_body=OURS)
    by_grpc = await served.client.generate("a red fox", steps=10, seed=7)
    assert first.data
    assert again.data
    assert first.data[0].b64_json == again.data[0].b64_json == base64.b64encode(by_grpc.png).decode()
    image = shown(str(first.data[0].b64_json))
    assert (image.format, f"{image.width}x{image.height}") == ("PNG", first.size)
    told = (first.data[0].model_extra or {})["afterimage"]
    assert (told["source"], told["steps"], told["steps_run"], told["steps_saved"]) == ("noise", 10, 10, 0)
    assert told["seed"] == 7
    assert told["seconds"] > 0
    told = (again.data[0].model_extra or {})["afterimage"]
    assert (told["source"], told["steps_run"], told["steps_saved"]) == ("exact", 0, 10)


async def test_several_images_in_another_format(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.images.generate(
        prompt="two red foxes", n=2, output_format="jpeg", output_compression=50, quality="high", extra_body=OURS
    )
    assert answer.data
    images = [one.model_extra["afterimage"] for one in answer.data if one.model_extra]
    assert [(one["index"], one["seed"]) for one in images] == [(0, 7), (1, 8)]
    assert {shown(str(one.b64_json)).format for one in answer.data} == {"JPEG"}
    assert answer.output_format == "jpeg"


async def test_a_request_names_a_class_of_deadlines(http: httpx.AsyncClient, served: House) -> None:
    asked: dict[str, Any] = {"prompt": "a fox", "slo": "loose", "num_inference_steps": 5}
    image = await http.post("/v1/images/generations", json={**asked, "model": "small"})
    clip = await http.post("/v1/videos", json={**asked, "num_frames": 2})
    for job_id in (image.json()["data"][0]["afterimage"]["job_id"], clip.json()["id"]):
        request = (await served.client.get_job(job_id)).job.request
        assert request.slo == "loose"
        assert request.deadline_s


async def test_a_format_that_a_gateway_cannot_write_is_refused(
    sdk: openai.AsyncOpenAI, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = await sdk.images.generate(prompt="a red fox", response_format="url", output_format="webp", extra_body=OURS)
    assert answer.data
    monkeypatch.setattr(pictures, "find_spec", lambda name: None)  # as where Pillow is not installed
    refused = await http.get(str(answer.data[0].url))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "output_format")


async def test_an_address_works_without_a_key_until_it_expires(
    sdk: openai.AsyncOpenAI, http: httpx.AsyncClient, served: House
) -> None:
    answer = await sdk.images.generate(prompt="a red fox", response_format="url", output_format="webp", extra_body=OURS)
    assert answer.data
    url = str(answer.data[0].url)
    assert url.startswith(served.process.http_address)
    read = await http.get(url)
    assert (read.status_code, read.headers["content-type"]) == (200, "image/webp")
    assert Image.open(io.BytesIO(read.content)).format == "WEBP"
    expires = httpx.URL(url).params["expires"]
    for wrong in (url.replace(expires, str(int(expires) + 1)), url.replace("webp", "png"), url[:-1] + "~"):
        refused = await http.get(wrong)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "bad_signature")


async def test_a_stream_has_openais_events(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.images.generate(
        model="small",
        prompt="a red fox at night",
        stream=True,
        partial_images=2,
        extra_body={"num_inference_steps": 50},
    )
    events: list[Any] = [event async for event in stream]
    assert [event.type for event in events[:-1]] == ["image_generation.partial_image"] * (len(events) - 1)
    assert 2 <= len(events) <= 3
    assert [event.partial_image_index for event in events[:-1]] == list(range(len(events) - 1))
    assert shown(events[0].b64_json).format == "PNG"
    assert events[-1].type == "image_generation.completed"
    assert shown(events[-1].b64_json).size == tuple(map(int, events[-1].size.split("x")))
    assert events[-1].afterimage["source"] == "noise"


async def test_models_and_probes(sdk: openai.AsyncOpenAI, http: httpx.AsyncClient) -> None:
    models = [one async for one in await sdk.models.list()]
    assert [(one.model_extra or {})["afterimage"]["roles"] for one in models] == [["large"], ["small"], []]
    assert (await sdk.models.retrieve("large")).id == models[0].id
    with pytest.raises(openai.NotFoundError, match="model: must be a model served here: auto, large, small"):
        await sdk.images.generate(model="dall-e-3", prompt="a fox")
    for path, status in (("/health", "ok"), ("/ready", "ready")):
        assert (await http.get(path)).json() == {"status": status, "away": []}


async def events_of(
    http: httpx.AsyncClient, body: dict[str, Any], headers: dict[str, str], most: int = 99
) -> list[tuple[str, str]]:
    """Return (id, kind) of a stream's first events."""
    found, event_id = list[tuple[str, str]](), ""
    async with http.stream("POST", "/v1/images/generations", json=body, headers=headers) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            event_id = line.removeprefix("id: ") if line.startswith("id: ") else event_id
            if line.startswith("event: "):
                found.append((event_id, line.removeprefix("event: image_generation.")))
            if not line and len(found) == most:
                break
    return found


async def test_a_broken_stream_goes_on_after_its_last_event(http: httpx.AsyncClient, served: House) -> None:
    body = {"prompt": "a slow fox", "stream": True, "partial_images": 2, "num_inference_steps": 60, "model": "small"}
    key = {"Idempotency-Key": "broken"}
    ((last, kind),) = await events_of(http, body, key, most=1)
    assert (last, kind) == ("1", "partial_image")
    rest = await events_of(http, body, key | {"Last-Event-ID": last})
    assert rest[-1] == ("e", "completed")
    assert rest[:-1] in ([], [("2", "partial_image")]), "the first preview is not sent again"
    assert await events_of(http, body, key | {"Last-Event-ID": "e"}) == []
    alone = await http.post("/v1/images/generations", json=body, headers={"Last-Event-ID": last})
    assert (alone.status_code, alone.json()["error"]["param"]) == (400, "Last-Event-ID")
