"""The ramp in virtual time: nothing is lost, the monitor follows, and what was assumed is written down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import monitor_ramp as bench
from bench.virtual_workers import Done, Request, Speed, Workers
from services.gpu_worker.duty import Duty
from shared.messages import lane_of, refine_lane


def test_a_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench.main(
        [
            "--workers",
            "4",
            "--hold-min",
            "4",
            "--ramp-min",
            "4",
            "--period-s",
            "30",
            "--high",
            "2",
            "--out",
            str(tmp_path),
        ]
    )
    written = json.loads((tmp_path / "monitor_ramp.json").read_text())
    figures = written["figures"]
    systems = figures["systems"]
    assert systems["vanilla"]["served"] < systems["nirvana"]["served"] < systems["modm"]["served"] <= figures["offered"]
    assert systems["modm"]["share_served"] > 0.95
    assert systems["modm"]["highest_rate"] > 1.5 * systems["vanilla"]["highest_rate"]
    assert figures["switches"] > 0
    assert figures["large_by_decision"][0][1] == figures["large_by_decision"][-1][1] == 4  # up, and all the way back
    assert written["settings"]["assumptions"] == list(bench.ASSUMPTIONS)
    assert (tmp_path / "monitor_ramp.png").stat().st_size > 0
    assert "| modm |" in capsys.readouterr().out


def test_the_ramp_and_its_arrivals() -> None:
    ramp = bench.Ramp(low=2, high=10, hold_s=100, ramp_s=200)
    assert [ramp.rate(at) for at in (0, 100, 200, 350, 500, 700)] == [2, 2, 6, 10, 6, 2]
    requests = list(bench.arrivals(ramp, {0: 0.25, 5: 0.75}, seed=3))
    expected = sum(ramp.mean(at, 100) * 100 for at in range(0, 700, 100))
    assert len(requests) == pytest.approx(expected, rel=0.1)
    assert sum(one.k == 5 for one in requests) / len(requests) == pytest.approx(0.75, abs=0.05)
    assert requests == list(bench.arrivals(ramp, {0: 0.25, 5: 0.75}, seed=3))
    assert bench.capped({0: 0.2, 5: 0.5, 25: 0.3}, 10) == {0: 0.2, 5: 0.5, 10: 0.3}


def test_virtual_workers_by_hand() -> None:
    """Steps of 1 and .25 s: a miss takes the large worker 50 s, a hit at K = 10 takes the small one 10 s."""
    speeds = {"large": Speed(1.0, 0.0, 1.0), "small": Speed(0.25, 0.0, 0.25)}
    done: list[Done] = []
    workers = Workers(
        ("large", "small"), speeds, 2, lambda one: refine_lane() if one.k else lane_of("large"), done.append
    )
    models = frozenset({"large", "small"})
    workers.assign({"w00": Duty("large", models, "throughput"), "w01": Duty("small", models, "throughput")})
    requests = [Request(n, 26.0, k) for n, k in enumerate((0, 10, 10, 0))]  # a drain of 25 s is over by then
    workers.run(requests, lambda _: None, until=200.0)
    assert [(one.request.number, one.at, one.model) for one in done] == [
        (1, 36.0, "small"),
        (2, 46.0, "small"),
        (0, 76.0, "large"),
        (3, 126.0, "large"),
    ]


def test_changes_of_direction() -> None:
    assert bench.reversals([16, 14, 14, 10, 12, 16]) == 1
    assert bench.reversals([16, 15, 16, 15]) == 2
    assert bench.reversals([16, 16]) == 0
