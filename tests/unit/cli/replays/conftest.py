"""The shipped trace, and folders without plots."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TRACE = str(Path(__file__).parents[4] / "load" / "traces" / "sessions_1200.jsonl")


@pytest.fixture
def plotted() -> None:
    """Tests that ask for this find plots in their folders."""


@pytest.fixture(autouse=True)
def _without_plots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where matplotlib is not installed: plots take half the time of a short replay."""
    if "plotted" not in request.fixturenames:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
