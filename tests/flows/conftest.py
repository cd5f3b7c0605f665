"""Random tiny models, built once, and settings that use them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared.models import tiny as tiny_models
from shared.settings import Settings

Make = Callable[..., Settings]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.build(tmp_path_factory.mktemp("models"))


@pytest.fixture
def make(settings: Settings, tiny: Path) -> Make:
    """Settings on the tiny models, with changes."""

    def made(**changes: Any) -> Settings:
        given = {"large": str(tiny / "large"), "encoder": str(tiny / "clip"), "torch_threads": 1} | changes
        return Settings(**(settings.model_dump(exclude={"catalog_url", "blobs_url"}) | given))

    return made
