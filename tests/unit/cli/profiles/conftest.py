"""Profiles without plots, but for the tests that ask for `plotted`."""

from __future__ import annotations

from tests.unit.cli.plots import plotted, without_plots

__all__ = ["plotted", "without_plots"]
