"""A small cache, and a clock that only moves when told."""

from __future__ import annotations

import pytest

from shared.runtime.clock import ManualClock
from shared.runtime.settings import Settings
from tests.unit.cached import MODEL


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def small(settings: Settings) -> Settings:
    """Room for two entries of five states."""
    return settings.model_copy(update={"large": MODEL, "cache_max_bytes": 1000, "cache_batch_s": 0.0})
