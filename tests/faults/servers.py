"""Whether this machine has the four servers that a cluster stands on."""

from __future__ import annotations

import os

import pytest

from scripts.stack import postgresql, rabbitmq, weaviate
from scripts.stack.stack import missing
from tests.contracts.servers import REQUIRED

_NEEDED = {"postgresql": postgresql, "rabbitmq": rabbitmq, "weaviate": weaviate}


def all_servers() -> None:
    """Skips the test when one is missing; fails it when AFTERIMAGE_TEST_REQUIRE names that one."""
    if said := missing(os.environ):
        required = any(name in REQUIRED and module.find() is None for name, module in _NEEDED.items())
        (pytest.fail if required else pytest.skip)("; ".join(said))
