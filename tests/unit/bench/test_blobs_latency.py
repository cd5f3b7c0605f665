"""The blob benchmark on whatever stores are installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import blobs_latency as bench


def test_a_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench, "WARM_UP", 1)
    bench.main(["--count", "3", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "blobs_latency.json").read_text())["figures"]
    assert found["filesystem"].keys() == {"2000", "20000", "150000"}
    for sizes in found.values():
        for taken in sizes.values():
            assert 0 < taken["put_p50_ms"] <= taken["put_p99_ms"]
            assert 0 < taken["get_p50_ms"] <= taken["get_p99_ms"]
    assert "| filesystem, 150 KB |" in capsys.readouterr().out
