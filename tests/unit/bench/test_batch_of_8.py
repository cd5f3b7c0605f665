"""The batch's gain is measured both ways and written where it is told to."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import batch_of_8
from tests import tiny


def test_figures_go_to_the_folder_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.build(tmp_path, clip=False) / "large"
    options = {"model": model, "rows": 2, "steps": 2, "threads": 1, "out": tmp_path / "results"}
    arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    monkeypatch.setattr(sys, "argv", ["batch_of_8", *arguments])
    monkeypatch.setattr(batch_of_8, "quiet", lambda: None)  # for a process of its own
    batch_of_8.main()
    written = json.loads((tmp_path / "results" / "batch_of_8.json").read_text())
    assert len(written["figures"]["all_one_by_one"]) == len(written["figures"]["all_batched"]) == 3
    assert written["figures"]["ratio"] > 0
    assert (written["settings"]["rows"], written["settings"]["rounds"]) == (2, 3)
