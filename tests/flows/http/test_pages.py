"""The pipeline of the how-to page runs as it is written there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.flows.house import House

pytestmark = pytest.mark.asyncio(loop_scope="session")

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "use-over-http.md"


async def test_the_pipeline_of_the_page_returns_images(
    served: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = PAGE.read_text().partition("## As a pipeline of diffusers")[2].partition("```python\n")[2]
    program = program.partition("```")[0].replace("http://127.0.0.1:8000", served.process.http_address)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    await asyncio.to_thread(exec, program, names)
    assert (tmp_path / "fox.png").read_bytes().startswith(b"\x89PNG")
    pipeline = names["pipeline"]
    assert callable(pipeline)
    result = await asyncio.to_thread(lambda: pipeline("two foxes", num_images_per_prompt=2, num_inference_steps=5))
    assert [one.size for one in result.images] == [(64, 64)] * 2
    assert [one["steps_run"] for one in result.afterimage] == [5, 5]
