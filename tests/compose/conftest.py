"""Tests with `docker` build images and start a dozen containers: `make test-compose` runs them, and no others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.compose.project import engine
from tests.contracts.servers import REQUIRED

ASKED = "AFTERIMAGE_TEST_COMPOSE"


@pytest.fixture(scope="session")
def docker() -> None:
    """Skips unless asked for; where AFTERIMAGE_TEST_REQUIRE names docker, an engine that is away is a failure."""
    if not os.environ.get(ASKED):
        pytest.skip("`make test-compose` runs these")
    if missing := engine():
        (pytest.fail if "docker" in REQUIRED else pytest.skip)(missing)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not os.environ.get(ASKED):
        return
    mine = [one for one in items if one.path.is_relative_to(Path(__file__).parent)]
    others = [one for one in mine if "docker" not in getattr(one, "fixturenames", ())]  # `make test` runs them
    config.hook.pytest_deselected(items=others)
    items[:] = [one for one in items if one not in others]
