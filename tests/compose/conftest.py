"""These tests build images and start a dozen containers, so only `make test-compose` runs them."""

from __future__ import annotations

import os

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
