"""Which servers the contract tests may use: a URL in the environment, or a skip that CI turns into a failure."""

from __future__ import annotations

import os

import pytest

REQUIRED = frozenset(filter(None, os.environ.get("AFTERIMAGE_TEST_REQUIRE", "").replace(",", " ").split()))
"""Servers that must be there: names as in `url_of`, separated by commas or spaces."""


def url_of(server: str) -> str:
    """AFTERIMAGE_TEST_<SERVER>_URL; without it the test is skipped, or fails when AFTERIMAGE_TEST_REQUIRE names it."""
    variable = f"AFTERIMAGE_TEST_{server.upper()}_URL"
    url = os.environ.get(variable, "")
    if not url:
        (pytest.fail if server in REQUIRED else pytest.skip)(f"no {server}: set {variable}")
    return url
