"""The shipped trace."""

from __future__ import annotations

from pathlib import Path

TRACE = str(Path(__file__).parents[4] / "load" / "traces" / "sessions_1200.jsonl")
