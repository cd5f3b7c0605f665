"""Clips by OpenAI's own client: asked for, followed, read, listed and deleted."""

from __future__ import annotations

import asyncio
import io
from typing import Any
from unittest.mock import AsyncMock

import httpx
import openai
import pytest
from PIL import Image

from services.gateway.erasing import Eraser
from shared.domain.errors import UnavailableError

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning"),  # OpenAI's own service has ended, not the API
]

STEPS: dict[str, Any] = {"num_inference_steps": 5}


async def test_a_clip_is_a_job(sdk: openai.AsyncOpenAI, http: httpx.AsyncClient) -> None:
    steps = {"num_inference_steps": 40}  # long enough to be seen on the way
    asked = await sdk.videos.create(prompt="a fox runs", seconds="1", size="64x64", extra_body=steps)  # type: ignore[arg-type]
    assert (asked.object, asked.status in ("queued", "in_progress"), asked.seconds) == ("video", True, "1")
    on_the_way = set[int]()
    async with asyncio.timeout(10):
        while (video := await sdk.videos.retrieve(asked.id)).status != "completed":
            on_the_way.add(video.progress)
            await asyncio.sleep(0.02)
    assert any(0 < progress < 100 for progress in on_the_way)
    assert (video.progress, video.size, (video.model_extra or {})["num_frames"]) == (100, "64x64", 8)
    assert (video.model_extra or {})["afterimage"]["steps_run"] == 40
    content = await sdk.videos.download_content(asked.id)
    assert (content.response.headers["content-type"], content.content[4:8]) == ("video/mp4", b"ftyp")
    for variant, kind, frames in (("thumbnail", "WEBP", 1), ("spritesheet", "JPEG", 1), ("source", "PNG", 8)):
        image = Image.open(io.BytesIO((await http.get(f"/v1/videos/{asked.id}/content?variant={variant}")).content))
        assert (image.format, getattr(image, "n_frames", 1)) == (kind, frames)
    assert (await sdk.videos.delete(asked.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await sdk.videos.download_content(asked.id)
    with pytest.raises(openai.NotFoundError):
        await sdk.videos.delete(asked.id)


async def test_clips_are_listed_and_deleted(sdk: openai.AsyncOpenAI, http: httpx.AsyncClient) -> None:
    body = {"prompt": "a fox waits", "num_inference_steps": 200, "num_frames": 2}
    kept, left = [(await http.post("/v1/videos", json=body)).json()["id"] for _ in range(2)]
    image = await http.post("/v1/images/generations", json={"prompt": "no clip", "num_inference_steps": 5})
    no_clip = image.json()["data"][0]["afterimage"]["job_id"]
    assert (await http.delete(f"/v1/videos/{no_clip}")).status_code == 404
    assert (await http.delete(f"/v1/images/{no_clip}")).status_code == 200
    assert (await sdk.videos.delete(left)).deleted
    with pytest.raises(openai.NotFoundError):
        await sdk.videos.retrieve(left)
    assert (await http.delete(f"/v1/images/{left}")).status_code == 404  # nothing of it is left to erase
    listed = [one.id async for one in sdk.videos.list(limit=1)]
    assert kept in listed
    assert left not in listed
    assert listed == sorted(listed, reverse=True)
    assert (await http.get(f"/v1/videos/{kept}/content")).status_code == 404
    assert (await http.delete(f"/v1/videos/{kept}")).status_code == 200


async def test_a_clip_is_cancelled_also_where_nobody_can_erase_it(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"prompt": "a fox waits", "num_inference_steps": 200, "num_frames": 2}
    clip = f"/v1/videos/{(await http.post('/v1/videos', json=body)).json()['id']}"
    with monkeypatch.context() as away:
        away.setattr(Eraser, "erase", AsyncMock(side_effect=UnavailableError("the cache maintainer is away")))
        assert (await http.delete(clip)).status_code == 503
    assert (await http.get(clip)).status_code == 404  # cancelled
    assert (await http.delete(clip)).status_code == 200
    assert (await http.delete(clip)).status_code == 404


@pytest.mark.parametrize(
    ("given", "status", "param"),
    [
        ({"json": {"prompt": "a fox", "model": "sora-2"}}, 404, "model"),
        ({"json": {"prompt": "a fox", "num_frames": 10**6}}, 400, "num_frames"),
        ({"json": {"prompt": "a fox", "seconds": "long"}}, 400, "seconds"),
        ({"json": {"prompt": "a fox", "lora": "x"}}, 400, "lora"),
        ({"json": ["a fox"]}, 400, None),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 400, None),
        ({"content": b"a fox", "headers": {"content-type": "text/plain"}}, 400, "Content-Type"),
        ({"data": {"prompt": "a fox"}, "files": {"input_reference": b"png"}}, 400, "image"),
        ({"json": {"prompt": "a fox", "input_reference": "png"}}, 400, "input_reference"),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data; boundary=y"}}, 400, None),
    ],
)
async def test_what_is_no_clip_is_refused(
    http: httpx.AsyncClient, given: dict[str, Any], status: int, param: str | None
) -> None:
    answer = await http.post("/v1/videos", **given)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text
    assert (await http.get("/v1/videos?after=x")).json()["error"]["param"] == "after"
