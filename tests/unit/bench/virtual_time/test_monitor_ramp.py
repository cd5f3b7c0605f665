"""The ramp in virtual time: nothing is lost, the monitor follows, and what was assumed is written down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.trace_plans import Hits
from bench.traced.systems import Served
from bench.virtual_time import monitor_ramp as bench


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
    # up, and all the way back, but for one: some hits only a small model may refine
    assert (figures["large_by_decision"][0][1], figures["large_by_decision"][-1][1]) == (4, 3)
    assert written["settings"]["assumptions"] == list(bench.ASSUMPTIONS)
    assert (tmp_path / "monitor_ramp.png").stat().st_size > 0
    assert "| modm |" in capsys.readouterr().out


def test_the_ramp_and_its_arrivals() -> None:
    ramp = bench.Ramp(low=2, high=10, hold_s=100, ramp_s=200)
    assert [ramp.rate(at) for at in (0, 100, 200, 350, 500, 700)] == [2, 2, 6, 10, 6, 2]
    arrived = list(bench.arrivals(ramp, seed=3))
    expected = sum(ramp.mean(at, 100) * 100 for at in range(0, 700, 100))
    assert len(arrived) == pytest.approx(expected, rel=0.1)
    assert [number for number, _ in arrived] == list(range(1, len(arrived) + 1))
    assert arrived == list(bench.arrivals(ramp, seed=3))


def test_the_work_of_one_request_by_who_may_do_it() -> None:
    hits = Hits(
        (
            Served(0, "image", "small", 10, 50, 0.6, (("small", 10), ("large", 5))),
            Served(1, "image", "small", 5, 50, 0.4, (("small", 5),)),
            Served(2, "noise", "large", 0, 50, 0.0, (("large", 0),)),
            Served(3, "latent", "large", 25, 50, 0.9, (("large", 25),)),
        )
    )
    work = bench.work_of(hits)
    assert (work.miss, work.hit, work.small) == pytest.approx((1.5 / 4, 0.8 / 4, 0.9 / 4))


def test_changes_of_direction() -> None:
    assert bench.reversals([16, 14, 14, 10, 12, 16]) == 1
    assert bench.reversals([16, 15, 16, 15]) == 2
    assert bench.reversals([16, 16]) == 0
