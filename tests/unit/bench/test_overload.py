"""The overload benchmark: what counts in a level's window, and when the goal holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.overload import CLOSED, level, plot, report, summary


def call(at: float, seconds: float, kind: str = "miss", name: str = "from noise", delay_s: float | None = None) -> Any:
    return {"at": at, "seconds": seconds, "late_s": 0.0, "kind": kind, "name": name, "delay_s": delay_s}


def test_what_arrived_within_the_window_counts_however_long_ago_it_was_asked() -> None:
    calls = [
        call(100.0, 1.0),  # before the window
        call(104.0, 8.0),  # asked before, drawn within
        call(112.0, 2.0),
        call(113.0, 0.01, "failed", "RESOURCE_EXHAUSTED", 0.5),
        call(114.0, 0.02, "failed", "RESOURCE_EXHAUSTED", 1.5),
        call(115.0, 1.0, "failed", "UNAVAILABLE"),
        call(118.0, 9.0),  # drawn after it
        call(119.0, 0.5, "unanswered", "unanswered"),  # cut off by the end
    ]
    found = level(calls, warm_s=10.0, window_s=10.0)
    assert found["goodput_per_s"] == pytest.approx(0.2)
    assert found["asked_per_s"] == pytest.approx(0.6)
    assert found["refused_per_s"] == pytest.approx(0.2)
    assert found["other_failures"] == {"UNAVAILABLE": 1}
    assert found["refusal_p50_ms"] == pytest.approx(15.0)
    assert (found["delay_p50_s"], found["refused_without_a_delay"]) == (1.0, 0)


def test_a_refusal_without_a_delay_is_noticed() -> None:
    refused = call(1.0, 0.01, "failed", "RESOURCE_EXHAUSTED")
    assert level([call(0.0, 0.5), refused], warm_s=0.0, window_s=5.0)["refused_without_a_delay"] == 1


def one_round(goodput: dict[float, float], asked: dict[float, float]) -> list[dict[str, Any]]:
    rows = []
    for multiple, per_s in goodput.items():
        found = level([call(0.0, 0.5)], warm_s=0.0, window_s=1.0)
        found |= {"multiple": multiple, "goodput_per_s": per_s, "asked_per_s": asked.get(multiple, per_s)}
        rows.append({**found, "cores": {"gateway": 0.5, "locust": 0.1}})
    return rows


def test_the_goal_is_about_what_was_possible_and_looks_at_the_capacity_and_beyond(tmp_path: Path) -> None:
    asked = {0.5: 4.0, 1.0: 7.6, 2.0: 16.0, 3.0: 24.0}
    good = one_round({CLOSED: 8.0, 0.5: 4.0, 1.0: 7.5, 2.0: 7.9, 3.0: 7.4}, asked)
    found = summary([good, good])
    assert found["met"]
    assert found["peak_per_s"] == 8.0
    assert found["worst_of_possible"] == pytest.approx(7.4 / 8.0)
    falling = summary([one_round({CLOSED: 8.0, 0.5: 4.0, 1.0: 7.5, 2.0: 7.0, 3.0: 6.0}, asked)])
    assert not falling["met"]
    assert "missed" in report("cluster", falling)
    assert "met" in report("cluster", found)
    plot({"cluster": found}, tmp_path / "overload.png")
    assert (tmp_path / "overload.png").stat().st_size > 5000
