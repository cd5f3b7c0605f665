"""`afterimage cache` on a data directory that nothing works in."""

from __future__ import annotations

import asyncio
import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from services.cache_maintainer.service import PAGE
from services.cli import cache
from shared.backends import open_backends
from shared.settings import Settings
from tests.contracts.nouns import an_entry


async def test_inspect_shows_as_many_entries_as_it_was_asked_for(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends = await open_backends(settings)
    for number in range(PAGE + 20):
        entry = replace(an_entry(steps=()), prompt=f"prompt {number}")
        await backends.catalog.entries.add(entry, {})
    await backends.close()
    shown = io.StringIO()
    monkeypatch.setattr(cache, "wide", lambda: Console(file=shown, width=400))
    await asyncio.to_thread(cache.inspect, "", PAGE + 10, "", settings.data_dir)
    assert len(set(re.findall(r"prompt \d+", shown.getvalue()))) == PAGE + 10
    assert "more: afterimage cache inspect" in shown.getvalue()
