"""A start loads the cache without collecting garbage, and makes the first key."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any, ClassVar

import pytest
import structlog

from shared.domain.errors import ConfigurationError
from shared.domain.identity import ApiKey
from shared.runtime.settings import Settings
from shared.service import Context, running
from shared.service.first_key import make_first_key


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


async def test_a_service_that_may_make_no_keys_leaves_no_file_with_one(tmp_path: Path) -> None:
    """A gateway with a database user of its own reads the keys, and no more."""

    class ReadOnlyKeys:
        async def all(self) -> list[ApiKey]:
            return []

        async def add_first(self, key: ApiKey) -> bool:
            raise ConfigurationError("catalog: permission denied for table api_keys")

    with structlog.testing.capture_logs() as logs:
        await make_first_key(ReadOnlyKeys(), tmp_path / "data")  # type: ignore[arg-type]
    assert not (tmp_path / "data" / "bootstrap-key").exists()
    assert [(one["event"], one["why"]) for one in logs] == [
        ("no bootstrap key", "catalog: permission denied for table api_keys")
    ]
