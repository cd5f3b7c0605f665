"""What a benchmark writes down, and how it reads a distribution."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from bench.measuring.recording import machine, quantile, record, table


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([3.0, 1.0, 2.0], 0.5, 2.0), ([1.0, 2.0], 0.5, 1.5), ([5.0], 0.99, 5.0), (list(range(101)), 0.99, 99.0)],
)
def test_quantiles_lie_between_neighbours(values: list[float], share: float, expected: float) -> None:
    assert quantile(values, share) == pytest.approx(expected)


def test_nothing_measured_has_no_quantile() -> None:
    assert math.isnan(quantile([], 0.5))


def test_a_record_says_figures_settings_and_machine(tmp_path: Path) -> None:
    on = machine()
    path = record("tried", {"p50_ms": 1.5}, {"count": 3}, on=on, folder=tmp_path / "results")
    written = json.loads(path.read_text())
    assert written["figures"] == {"p50_ms": 1.5}
    assert written["settings"] == {"count": 3}
    assert written["machine"] == on
    assert written["command"].startswith("python -m bench.tried")
    assert on["cores"] >= 1
    assert on["fsync_p50_ms"] >= 0
    assert on["packages"]["torch"] != "not installed"


def test_a_record_of_a_no_op_model_says_that_its_k_table_fits_no_encoder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = json.loads(record("tried", {}, {"large": "noop:?step_ms=1"}, on={}, folder=tmp_path).read_text())
    assert written["settings"]["k_table"].startswith("NIRVANA Fig. 10 (or the table")
    assert f"no-op model: {written['settings']['k_table']}" in capsys.readouterr().out
    written = json.loads(record("tried", {}, {"large": "bundled:large"}, on={}, folder=tmp_path).read_text())
    assert "k_table" not in written["settings"]


def test_what_was_not_measured_is_null_since_json_knows_no_nan(tmp_path: Path) -> None:
    figures = {"refusal_p50_ms": quantile([], 0.5), "rounds": [{"worst": math.inf}, {"worst": 1.0}]}
    path = record("tried", figures, {}, on={"cores": 2}, folder=tmp_path)
    assert "NaN" not in path.read_text()
    assert json.loads(path.read_text())["figures"] == {
        "refusal_p50_ms": None,
        "rounds": [{"worst": None}, {"worst": 1.0}],
    }


def test_a_table_is_markdown() -> None:
    assert table(["a", "b"], [["x", 0.12345]]).splitlines() == ["| a | b |", "| --- | ---: |", "| x | 0.123 |"]
