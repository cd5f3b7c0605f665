"""What a start does once: it loads the cache without collecting garbage."""

from __future__ import annotations

import gc
from typing import Any, ClassVar

import pytest

from shared.domain.errors import ConfigurationError
from shared.runtime.settings import Settings
from shared.service import Context, running


class Loading:
    """A service that notes whether garbage is collected while it starts."""

    name: ClassVar[str] = "loading"
    collected: bool | None = None

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    async def start(self, context: Context) -> None:
        self.collected = gc.isenabled()
        if self._error is not None:
            raise self._error

    def register(self, server: Any) -> None:
        return None

    async def drain(self) -> None: ...

    async def stop(self) -> None: ...


async def test_garbage_is_collected_after_the_start_and_not_during_it(settings: Settings) -> None:
    service = Loading()
    async with running([service], settings):
        assert service.collected is False
        assert gc.isenabled()


async def test_a_failed_start_leaves_the_collection_as_it_was(settings: Settings) -> None:
    with pytest.raises(ConfigurationError):
        async with running([Loading(ConfigurationError("listen: no"))], settings):
            pass
    assert gc.isenabled()
