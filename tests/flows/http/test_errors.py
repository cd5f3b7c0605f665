"""Every refusal has one shape, the right status, the field's name, and advice on another try."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import MutableMapping
from typing import Any

import httpx
import openai
import pytest

from services.gateway.http import events, guard
from shared.domain.errors import JobFailedError, OverloadedError
from shared.domain.types import JobState
from tests.flows.house import House

pytestmark = pytest.mark.asyncio(loop_scope="session")

IMAGES = "/v1/images/generations"


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("size", "63x64", "size"),
        ("size", "64 by 64", "size"),
        ("width", 64, "size"),
        ("n", 0, "n"),
        ("n", "2", "n"),
        ("n", 999, "n"),
        ("num_inference_steps", 0, "num_inference_steps"),
        ("num_inference_steps", 10**30, "num_inference_steps"),
        ("guidance_scale", 1e9, "guidance_scale"),
        ("seed", -1, "seed"),
        ("seed", 2**64, "seed"),
        ("prompt", "", "prompt"),
        ("prompt", "a\x00b", "prompt"),
        ("prompt", None, "prompt"),
        ("negative_prompt", "x" * 100_000, "negative_prompt"),
        ("output_format", "gif", "output_format"),
        ("background", "transparent", "background"),
        ("response_format", "file", "response_format"),
        ("partial_images", 1, "partial_images"),
        ("deadline_s", 0, "deadline_s"),
        ("slo", "fast", "slo"),
        ("savings", 2, "savings"),
        ("variation", "none", "variation"),
        ("scope", "public", "scope"),
        ("scope", "private", "user"),
        ("user", "key:somebody", "user"),
        ("lora", {"name": "x"}, "lora"),
    ],
)
async def test_a_wrong_field_is_named(http: httpx.AsyncClient, field: str, value: Any, param: str) -> None:
    answer = await http.post(IMAGES, json={"prompt": "a fox", field: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param), error
    assert error["message"].startswith(f"{param}: ")
    assert answer.headers["x-should-retry"] == "false"


async def test_a_refusal_says_what_is_allowed(http: httpx.AsyncClient) -> None:
    async def message(method: str, path: str, **given: Any) -> str:
        return str((await http.request(method, path, **given)).json()["error"]["message"])

    steps = {"prompt": "a fox", "num_inference_steps": "many"}
    assert await message("POST", IMAGES, json=steps) == "num_inference_steps: Input should be a valid integer or 'auto'"
    clips = await message("POST", IMAGES, json={"prompt": "a fox", "model": "clips"})
    assert clips.startswith("model: names a model of clips; these make images: auto, large")
    many = await message("POST", IMAGES, json={"prompt": "a fox", "n": 99_999})
    assert many.startswith("n: must be from 1 to 8 (max_images)")
    assert await message("GET", "/v1/models/sora-2") == "model: is not served here; GET /v1/models lists what is"
    assert await message("GET", "/v1/videos?after=zzz") == (
        "after: must be the id that ends the page before, or empty (got 'zzz')"
    )


@pytest.mark.parametrize(
    ("body", "kind", "code"),
    [
        (b"{", "application/json", "json_invalid"),
        (b'{"prompt": NaN}', "application/json", "string_type"),
        (b'{"prompt": "\\ud800"}', "application/json", "string_unicode"),
        (b"[" * 50_000, "application/json", "bad_request"),
        (b'{"prompt": "a fox"}', "text/plain", "model_attributes_type"),
        (b"", "application/json", "missing"),
    ],
)
async def test_a_body_that_is_no_request(http: httpx.AsyncClient, body: bytes, kind: str, code: str) -> None:
    answer = await http.post(IMAGES, content=body, headers={"content-type": kind})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == code


async def test_paths_and_methods_that_are_not_there(http: httpx.AsyncClient) -> None:
    for method, path, status in (("GET", "/v1/nothing", 404), ("GET", IMAGES, 405), ("DELETE", "/health", 405)):
        answer = await http.request(method, path)
        assert (answer.status_code, set(answer.json()["error"])) == (status, {"message", "type", "param", "code"})
    assert answer.headers["allow"] == "GET"
    unknown = await http.get(f"/v1/images/{'0' * 26}/content")
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")


async def test_a_body_is_refused_by_its_size_and_by_its_slowness(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = {"prompt": "x" * 2_000_000}
    assert (await http.post(IMAGES, json=large)).json()["error"]["code"] == "request_too_large"

    async def chunks(count: int, pause_s: float) -> Any:
        for _ in range(count):
            yield b"x" * 100_000
            await asyncio.sleep(pause_s)

    with contextlib.suppress(httpx.WriteError):  # the server has answered and closed
        assert (await http.post(IMAGES, content=chunks(40, 0.0))).status_code == 413
    monkeypatch.setattr(guard, "BODY_S", 0.05)
    assert (await http.post(IMAGES, content=chunks(2, 0.3))).status_code == 408


async def test_only_pages_of_this_server_reach_it(http: httpx.AsyncClient) -> None:
    """A page whose name was rebound to 127.0.0.1, and a page of another site."""
    for host, status in (("evil.example", 403), ("evil.example:8000", 403), ("a@b", 400), ("localhost:1", 200)):
        assert (await http.get("/v1/models", headers={"host": host})).status_code == status, host
    port = http.base_url.port
    for origin, status in (("https://evil.example", 403), ("null", 403), (f"http://127.0.0.1:{port}", 200)):
        answer = await http.get("/v1/models", headers={"origin": origin})
        assert answer.status_code == status, origin
        assert "access-control-allow-origin" not in answer.headers
    preflight = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    assert (await http.options(IMAGES, headers=preflight)).status_code == 403


async def test_the_clients_package_is_told_when_to_try_again(
    sdk: openai.AsyncOpenAI,
    served: House,
    monkeypatch: pytest.MonkeyPatch,
    logs: list[MutableMapping[str, Any]],
) -> None:
    tries = []

    def refusing(error: Exception) -> Any:
        async def accept(*_: Any, **__: Any) -> None:
            tries.append(error)
            raise error

        return accept

    async def refused(error: Exception) -> openai.APIStatusError:
        tries.clear()
        monkeypatch.setattr(_calls(served), "accept", refusing(error))
        with pytest.raises(openai.APIStatusError) as found:
            await sdk.with_options(max_retries=1).images.generate(prompt="a fox")
        return found.value

    full = await refused(OverloadedError("the queue is full", retry_after_s=0.001))
    assert (full.status_code, full.response.headers["retry-after"], len(tries)) == (429, "1", 2)
    failed = await refused(JobFailedError("the job failed"))
    assert (failed.status_code, failed.code, len(tries)) == (500, "job_failed", 1), "the same request fails again"
    broken = await refused(ZeroDivisionError("secrets"))
    assert (broken.status_code, len(tries)) == (500, 1)
    assert "ZeroDivisionError" in broken.message
    assert "secrets" not in broken.message
    assert "secrets" in logs[-1]["error"]


async def test_of_several_images_those_that_succeed_are_returned(http: httpx.AsyncClient, served: House) -> None:
    body = {"prompt": "slow foxes", "model": "small", "n": 2, "num_inference_steps": 40}
    request = asyncio.create_task(http.post(IMAGES, json=body))
    first = await _job(served, "slow foxes")
    await served.client.cancel(first)
    answer = (await request).json()
    assert [one["afterimage"]["job_id"] for one in answer["data"]] != [first]
    (failed,) = answer["afterimage"]["failed"]
    assert (failed["job_id"], failed["code"], len(answer["data"])) == (first, "job_cancelled", 1)


async def test_a_disconnect_cancels_what_nobody_waits_for(http: httpx.AsyncClient, served: House) -> None:
    body = {"model": "small", "num_inference_steps": 200}
    with pytest.raises(httpx.ReadTimeout):
        await http.post(IMAGES, json={"prompt": "left alone", **body}, timeout=0.5)
    async with http.stream("POST", IMAGES, json={"prompt": "left stream", "stream": True, **body}):
        left = await _job(served, "left stream")
    for job_id in (await _job(served, "left alone"), left):
        async with asyncio.timeout(10):
            while (await served.client.get_job(job_id)).job.state is not JobState.CANCELLED:
                await asyncio.sleep(0.02)


async def test_a_retry_with_the_same_key_gets_the_job_that_was_left(http: httpx.AsyncClient) -> None:
    body, key = {"prompt": "kept", "model": "small", "num_inference_steps": 25}, {"idempotency-key": "k1"}
    with pytest.raises(httpx.ReadTimeout):
        await http.post(IMAGES, json=body, headers=key, timeout=0.3)
    first = await http.post(IMAGES, json=body, headers=key)
    again = await http.post(IMAGES, json=body, headers=key)
    assert first.json()["data"][0]["afterimage"]["job_id"] == again.json()["data"][0]["afterimage"]["job_id"]
    other = await http.post(IMAGES, json=body | {"prompt": "other"}, headers=key)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "already_exists")


async def test_a_stream_that_is_silent_sends_comments(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.05)
    body = {"prompt": "a slow fox", "model": "small", "stream": True, "num_inference_steps": 20, "seed": 1}
    async with http.stream("POST", IMAGES, json=body) as answer:
        text = "".join([part async for part in answer.aiter_text()])
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert text.startswith(": waiting\n\n")
    assert re.findall(r"^event: (.+)$", text, re.MULTILINE) == ["image_generation.completed"]


async def test_the_document_names_every_status(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert "422" not in operation["responses"]
            needed = {"200", "400", "403", "500"} | ({"401", "404"} if path.startswith("/v1") else set())
            assert needed <= set(operation["responses"]), path


def _calls(served: House) -> Any:
    return served.process.services[0]._calls  # type: ignore[attr-defined]


async def _job(served: House, prompt: str) -> str:
    """Return the id of the oldest job with this prompt, once there is one."""
    async with asyncio.timeout(10):
        while True:
            jobs, _ = await served.client.list_jobs()
            if found := [one.job.id for one in jobs if one.job.request.prompt == prompt]:
                return min(found)
            await asyncio.sleep(0.01)
