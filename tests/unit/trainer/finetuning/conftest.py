"""A tiny checkpoint, a dozen captioned images, and the settings of a short run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from services.trainer.finetuning.settings import RunSettings
from tests.tiny import build

SHAPES = ((32, 32), (48, 24), (24, 48))
"""Sizes of the images: square, wide, tall."""


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A StableDiffusionPipeline folder with random weights."""
    return build(tmp_path_factory.mktemp("base"), channels=(8, 16), clip=False) / "large"


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 12 images with metadata.jsonl."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    lines = []
    for number in range(12):
        width, height = SHAPES[number % 3]
        pixels = np.zeros((height, width, 3), np.uint8) + rng.integers(0, 255, 3, np.uint8)
        pixels[height // 4 : height // 2, width // 4 : width // 2] = rng.integers(0, 255, 3, np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        lines.append(json.dumps({"file_name": f"{number}.png", "text": f"a square on a field {number}"}))
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def settings_of(base: Path, photos: Path, out: Path, **changes: Any) -> RunSettings:
    """Settings of a run of 6 iterations; `changes` replace tables and values."""
    keys: dict[str, Any] = {
        "model": str(base),
        "out": str(out),
        "iterations": 6,
        "batch": 4,
        "data": {"path": str(photos), "resolution": 32},
        "optimizer": {"rate": 1e-3, "warmup": 2},
        "validation": {"every": 3, "samples_every": 6, "prompts": ["a square"], "steps": 2},
        "checkpoints": {"every": 2, "keep": 2},
    }
    for name, value in changes.items():
        keys[name] = keys[name] | value if isinstance(value, dict) and name in keys else value
    return RunSettings.model_validate(keys)
