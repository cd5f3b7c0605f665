"""Images that start from an uploaded one, by OpenAI's own client."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning"),  # OpenAI's own service has ended, not the API
]

OURS: dict[str, Any] = {"num_inference_steps": 10, "seed": 7}


def png(mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.new(mode, (32, 32)).save(out, "PNG")
    return out.getvalue()


async def test_an_edit_starts_from_the_upload(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.images.edit(
        image=png(), prompt="a red fox", n=2, input_fidelity="high", extra_body={**OURS, "strength": 0.3}
    )
    assert answer.data
    told = [(one.model_extra or {})["afterimage"] for one in answer.data]
    assert [(one["source"], one["steps_run"], one["steps_saved"]) for one in told] == [("upload", 3, 0)] * 2
    assert (answer.model_extra or {})["afterimage"]["ignored"] == ["input_fidelity"]
    masked = await sdk.images.edit(image=[png()], mask=png("RGBA"), prompt="a red fox", extra_body=OURS)
    assert masked.data
    assert (masked.data[0].model_extra or {})["afterimage"]["steps_run"] == 10


async def test_a_streamed_edit_has_its_own_event_names(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.images.edit(image=png(), prompt="a red fox", stream=True, extra_body=OURS)
    kinds = [event.type async for event in stream]
    assert kinds[-1] == "image_edit.completed"


async def test_a_clip_begins_with_the_upload(sdk: openai.AsyncOpenAI) -> None:
    asked = await sdk.videos.create(
        prompt="a fox runs", input_reference=("fox.png", png()), extra_body={"num_inference_steps": 5}
    )
    async with asyncio.timeout(10):
        while (video := await sdk.videos.retrieve(asked.id)).status not in ("completed", "failed"):
            await asyncio.sleep(0.05)
    assert (video.status, (video.model_extra or {})["afterimage"]["source"]) == ("completed", "upload")


@pytest.mark.parametrize(
    ("data", "files", "param"),
    [
        ({"prompt": "a fox"}, {}, "Content-Type"),
        ({"prompt": "a fox"}, {"mask": png("RGBA")}, "image"),
        ({"prompt": "a fox"}, {"image": b"no image"}, "image"),
        ({"prompt": "a fox"}, [("image[]", png()), ("image[]", png())], "image"),
        ({"prompt": "a fox"}, {"image": png(), "mask": png()}, "mask"),
        ({"prompt": "a fox", "image": "text"}, {"mask": png()}, "image"),
        ({"prompt": "a fox", "strength": "2"}, {"image": png()}, "strength"),
        ({"prompt": "a fox", "cache": "write"}, {"image": png()}, "cache"),
        ({"prompt": "a fox", "from_job": "x"}, {"image": png()}, "from_job"),
        ({}, {"image": png()}, "prompt"),
    ],
)
async def test_what_is_refused(http: httpx.AsyncClient, data: Any, files: Any, param: str) -> None:
    answer = await http.post("/v1/images/edits", data=data, files=files)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    large = await http.post("/v1/images/generations", content=bytes(2**20))
    assert large.status_code == 413, "only forms with files may be large"
