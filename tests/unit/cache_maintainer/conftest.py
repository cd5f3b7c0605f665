"""Settings of a small cache and of a short grace, and a clock that only moves when told."""

from __future__ import annotations

import pytest

from services.cache_maintainer.background_work import BackgroundWork
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


@pytest.fixture
def brief(settings: Settings) -> Settings:
    """A grace that is over at once."""
    return settings.model_copy(update={"large": MODEL, "blob_grace_s": 0.05})


@pytest.fixture
def passes_are_made_by_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> None:
        return

    monkeypatch.setattr(BackgroundWork, "every", never)
