"""The README's picture says where each image of a demo started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from scripts.edit_chain import chain, composed, main

REQUESTS: list[dict[str, Any]] = [
    {"prompt": "a fox", "source": "noise", "from_prompt": "", "start_step": 0, "steps_run": 50},
    {"prompt": "a sailboat", "source": "noise", "from_prompt": "", "start_step": 0, "steps_run": 50},
    {"prompt": "a red fox", "source": "latent", "from_prompt": "a fox", "start_step": 15, "steps_run": 35},
    {"prompt": "a red fox", "source": "exact", "from_prompt": "a red fox", "start_step": 50, "steps_run": 0},
]
REQUESTS = [{"file": f"{number:02}.png", "steps": 50, **one} for number, one in enumerate(REQUESTS, 1)]


def test_each_column_names_the_column_that_it_started_from() -> None:
    links = chain(REQUESTS, [1, 3, 4])
    assert [link.source for link in links] == [None, 0, 1]
    assert [link.words for link in links] == [
        ("from noise", "50 steps"),
        ("from 1 after step 15", "35 steps, 30% saved"),
        ("same request as 2", "stored image, 0 steps"),
    ]


def test_an_image_that_started_from_one_that_is_not_shown_is_refused() -> None:
    with pytest.raises(ValueError, match="request 3 started from 'a fox'"):
        chain(REQUESTS, [2, 3])


def test_the_picture_is_written_from_a_demo_s_files(tmp_path: Path) -> None:
    for number in range(1, 5):
        for name in (f"{number:02}.png", f"{number:02}-without-cache.png"):
            Image.new("RGB", (64, 64), "red").save(tmp_path / name)
    (tmp_path / "summary.json").write_text(json.dumps({"requests": REQUESTS}))
    main(tmp_path, tmp_path / "chain.png", [1, 3, 4])
    with Image.open(tmp_path / "chain.png") as picture:
        assert picture.size == composed(chain(REQUESTS, [1, 3, 4]), tmp_path).size
