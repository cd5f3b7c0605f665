"""Commands without plots, as where matplotlib is not installed."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture
def plotted() -> None:
    """Tests that ask for this find plots in their folders."""


@pytest.fixture(autouse=True)
def without_plots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots take half the time of a short replay."""
    if "plotted" not in request.fixturenames:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
