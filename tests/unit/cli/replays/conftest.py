"""The shipped trace, and folders without plots."""

from __future__ import annotations

from pathlib import Path

from tests.unit.cli.plots import plotted, without_plots

__all__ = ["TRACE", "plotted", "without_plots"]
TRACE = str(Path(__file__).parents[4] / "load" / "traces" / "sessions_1200.jsonl")
