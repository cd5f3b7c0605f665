"""Bounds by hand, the virtual figures at a small size, and late answers by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.trace_plans import Hits, figures_of, load_hits
from bench.traced.systems import Served
from bench.virtual_time import paper_rates, slo_latency, two_models
from bench.virtual_time.virtual_systems import Run, bundled_speeds, miss, picture, plain
from services.global_monitor.decision import Decision, Rules
from services.global_monitor.monitor import GlobalMonitor
from services.replay.simulated.worker_state import Done, Request


def image(index: int, k: int, *models: str) -> Served:
    return Served(index, "image", models[0], k, 50, 0.6, tuple((model, k) for model in models))


def noise(index: int) -> Served:
    return Served(index, "noise", "large", 0, 50, 0.0, (("large", 0),))


HITS = {
    "modm": Hits((image(0, 10, "small", "large"), image(1, 5, "small"), image(2, 10, "small", "large"), noise(3))),
    "nirvana": Hits((Served(0, "latent", "large", 25, 50, 0.9, (("large", 25),)), *map(noise, (1, 2, 3)))),
    "retrieval": Hits((Served(0, "exact", "", 50, 50, 0.99, ()), *map(noise, (1, 2, 3)))),
}


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    (tmp_path / "trace_plans.json").write_text(json.dumps({"figures": figures_of(HITS)}))
    return tmp_path


def test_decisions_survive_being_written_down(plans: Path) -> None:
    assert {name: load_hits(name, plans) for name in HITS} == HITS
    modm = HITS["modm"]
    assert modm.rate == 0.75
    assert modm.k_histogram == {0: 1, 5: 1, 10: 2}
    assert modm.share_skipped == pytest.approx((0.2 + 0.1 + 0.2) / 3)


def test_bounds_by_hand() -> None:
    bound = two_models.Bound(hit_rate=0.8, skipped=0.5, ratio=0.25)
    assert bound.fractional == pytest.approx(1 / (0.2 + 0.8 * 0.5 * 0.25))
    # of two workers one stays large: the misses are the limit, 1 / (2·(1 − h))
    assert bound.whole(2) == pytest.approx(1 / (2 * 0.2))
    # and without misses the hits on the other one
    assert two_models.Bound(1.0, 0.5, 0.25).whole(2) == pytest.approx(1 / (2 * 0.5 * 0.25))
    assert bound.whole(3) == pytest.approx(min(2 / 0.2, 1 / 0.1) / 3)
    assert bound.whole(1000) == pytest.approx(bound.fractional, rel=0.01)


def test_throughput_of_a_small_fleet(plans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = ["--minutes", "6", "--settle-min", "3", "--period-s", "30"]
    two_models.main(["--workers", "3", "--plans", str(plans), "--out", str(tmp_path), *times])
    (fleet,) = json.loads((tmp_path / "two_models.json").read_text())["figures"]["fleets"]
    speedups = {name: one["speedup"] for name, one in fleet["systems"].items()}
    assert speedups["vanilla"] == 1
    assert speedups["vanilla"] < speedups["nirvana"] < speedups["modm_throughput"] < speedups["small"]
    assert speedups["retrieval"] == pytest.approx(4 / 3, rel=0.1)  # a quarter is handed out
    best = fleet["systems"]["modm_throughput"]
    assert 0.7 < best["of_whole_bound"] <= 1.03
    assert best["hits_among_served"] == pytest.approx(0.75, abs=0.1)
    assert set(best["refined_by"]) == {"small"}
    assert "of that with whole workers" in capsys.readouterr().out
    assert (tmp_path / "two_models.png").stat().st_size > 0


def test_busy_and_idle_seconds_by_hand() -> None:
    load = two_models.Load(workers=2, rows=8, rate=1.0, settle_s=100.0, until=200.0, seed=1, watts=(100.0, 10.0))
    # 150 of 200 worker seconds busy, and 50 requests
    assert load.joules_per_request(Run(busy_s=150.0), per_s=0.5) == (150 * 100 + 50 * 10) / 50
    speeds = bundled_speeds()
    hit = picture((("small", 20),))
    expected = {
        miss("large"): speeds["large"].alone_s(),
        hit: 30 * speeds["small"].of(1) + 2 * speeds["small"].decode_s,  # encoded, too
    }
    for plan, seconds in expected.items():
        for since, busy_s in ((0.0, seconds), (50.0, 0.0)):
            found = plain(iter([(1, 10.0)]), [plan], speeds, 2, 100.0, model=plan.model, since=since)
            assert found.busy_s == pytest.approx(busy_s)


def test_energy_and_scaling_of_two_fleets(plans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = ["--minutes", "6", "--settle-min", "3", "--period-s", "30", "--watts", "100", "--idle-watts", "10"]
    two_models.main(["--workers", "2", "4", "--plans", str(plans), "--out", str(tmp_path), *times])
    few, many = json.loads((tmp_path / "two_models.json").read_text())["figures"]["fleets"]
    vanilla = few["systems"]["vanilla"]
    assert vanilla["busy"] == pytest.approx(1.0, abs=0.01)  # more is asked for than anybody can serve
    assert vanilla["joules_per_request"] == pytest.approx(2 * 100 / vanilla["per_s"], rel=0.01)
    for fleet in (few, many):
        for one in fleet["systems"].values():
            watts = 100 * one["busy"] + 10 * (1 - one["busy"])
            assert one["joules_per_request"] == pytest.approx(fleet["workers"] * watts / one["per_s"], rel=0.01)
    modm = few["systems"]["modm_throughput"]
    assert modm["energy_saved"] == pytest.approx(1 - modm["joules_per_request"] / vanilla["joules_per_request"])
    assert modm["energy_saved"] == pytest.approx(1 - 1 / modm["speedup"], abs=0.02)
    assert two_models.per_worker([few, many], "vanilla") == [1, pytest.approx(1.0, abs=0.02)]
    assert "N = 2: 1" in capsys.readouterr().out


def test_late_answers_and_the_tail_by_hand() -> None:
    done = [Done(Request(n, 0.0, miss("large")), at, "w", "large", 50) for n, at in ((1, 11.0), (2, 25.0), (3, 45.0))]
    found = slo_latency.judged(done, {1: 10.0, 2: 10.0, 3: 20.0, 4: 99.0}, until=100.0, alone_s=5.0)
    # 1, 15 and 25 seconds, and one that waits since one second: it is not there, so it is late
    assert (found["late_2x"], found["late_4x"]) == (0.75, 0.5)
    assert found["seconds_p50"] == 8.0
    levels = [
        {"offered": rate, "systems": {"modm": {"late_2x": late}}} for rate, late in ((1, 0.0), (2, 0.2), (3, 0.0))
    ]
    assert slo_latency.highest_within(levels, "modm", "late_2x") == 1


def test_late_answers_of_a_small_fleet(plans: Path, tmp_path: Path) -> None:
    some = ["--workers", "2", "--rows", "1", "--rates", "0.4", "2", "--minutes", "6", "--settle-min", "3"]
    slo_latency.main([*some, "--period-s", "30", "--plans", str(plans), "--out", str(tmp_path)])
    (fleet,) = json.loads((tmp_path / "slo_latency.json").read_text())["figures"]["fleets"]
    few, many = (one["systems"] for one in fleet["levels"])
    assert few["modm"]["late_4x"] < 0.05
    assert many["vanilla"]["late_2x"] > many["modm"]["late_2x"]
    assert many["vanilla"]["seconds_p99"] > many["modm"]["seconds_p99"]
    assert (tmp_path / "slo_latency.png").stat().st_size > 0


def test_the_paper_s_regimes(plans: Path, tmp_path: Path) -> None:
    some = ["--rates", "8", "16", "28", "--hours", "2", "--plans", str(plans), "--out", str(tmp_path)]
    paper_rates.main(some)
    figures = json.loads((tmp_path / "paper_rates.json").read_text())["figures"]
    assert figures["most_served_per_min"]["vanilla"] == pytest.approx(10, rel=0.05)
    assert [paper_rates.regime(one) for one in figures["levels"]] == ["sd3.5-large", "sdxl", "sana"]
    assert paper_rates.spans(figures["levels"]) == [("sd3.5-large", 8, 12), ("sdxl", 12, 22), ("sana", 22, 28)]
    assert figures["highest_sustained_per_min"]["modm"] == 28
    assert (tmp_path / "paper_rates.png").stat().st_size > 0
    switches = [(one["switches"], one["small_model_changes"]) for one in figures["levels"]]
    assert switches[0] == (0, 0)  # the large model alone carries this rate
    assert all(workers > 0 == smalls for workers, smalls in switches[1:])  # each of these needs one small model


def test_a_change_of_the_small_model_counts_where_workers_switch_to_it() -> None:
    monitor = GlobalMonitor(Rules("large", ("sdxl", "sana")), 0.0)
    first = monitor.decide(0.0)

    def decided(small: str, *workers: str) -> Decision:
        return replace(first, target=replace(first.target, small=small), switches=workers)

    sdxl, sana = decided("sdxl", "w1"), decided("sana", "w1", "w2")
    run = Run(decisions=[sdxl, decided("sana"), sdxl, sana, sana, sdxl])  # the second was not carried out
    assert paper_rates.small_changes(run) == 2
