"""Programs run on uvloop where it is installed, and without it all the same."""

from __future__ import annotations

import asyncio
import sys

import pytest

from shared.runtime.loop import run


async def _loop_module() -> str:
    await asyncio.sleep(0)
    return type(asyncio.get_running_loop()).__module__


def test_on_uvloop_where_it_is_installed() -> None:
    pytest.importorskip("uvloop")
    assert run(_loop_module()).startswith("uvloop")


def test_on_asyncios_own_loop_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)  # as if it were not installed
    assert run(_loop_module()).startswith("asyncio")
