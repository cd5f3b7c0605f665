"""A tiny random CLIP pair, built once."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.embedder.encoder import Encoder
from tests import tiny


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-clip")
    tiny.build_clip(folder)
    return folder / tiny.CLIP


@pytest.fixture(scope="session")
def encoder(clip_folder: Path) -> Encoder:
    return Encoder(clip_folder)
