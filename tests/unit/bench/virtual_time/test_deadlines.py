"""Deadlines of several workers in virtual time: what is served, counted and dropped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.virtual_time.deadlines import SYSTEMS, compared, judged, load_allowed, main, serve
from bench.virtual_time.fleet import SLO, Fleet, System, Worker, arrivals, by_arrival, by_resolution, by_slack
from shared.models import find_card

WORKER = Worker(find_card("bundled:large"), rows=4, steps=10)
SLACK, FIRST = System("slack", by_slack), System("first", by_arrival)


def met(system: System, load: float, *, workers: int = 1) -> float:
    requests = list(arrivals(WORKER, load, 120, 1, workers))
    return judged(WORKER, requests, serve(WORKER, system, requests, drop=True, seed=1, workers=workers))["met"]


def test_requests_arrive_at_the_load_with_deadlines_of_their_size() -> None:
    requests = list(arrivals(WORKER, 0.5, 2000, seed=3))
    assert len(requests) / requests[-1].since == pytest.approx(0.5 * WORKER.capacity, rel=0.1)
    for one in requests[:20]:
        assert one.deadline_at == pytest.approx(one.since + SLO * WORKER.alone_s(one.kind))
    assert {one.kind for one in requests} == {*WORKER.kinds}


def test_one_request_alone_takes_its_standalone_time() -> None:
    (only,) = arrivals(WORKER, 0.01, 1, seed=1)
    served = serve(WORKER, SLACK, [only], drop=True, seed=1)
    assert served.ends[only.id] - only.since == pytest.approx(WORKER.alone_s(only.kind), rel=0.1)
    assert served.row_steps == WORKER.steps


def test_everybody_is_in_time_at_a_low_load_and_slack_meets_more_at_a_high_one() -> None:
    assert met(SLACK, 0.1) == met(FIRST, 0.1) == 1.0
    assert met(SLACK, 1.2) > met(FIRST, 1.2) + 0.05


def test_nobody_is_dropped_if_all_are_kept() -> None:
    requests = list(arrivals(WORKER, 1.5, 60, seed=1))
    for system in SYSTEMS:
        assert len(serve(WORKER, system, requests, drop=False, seed=1, workers=2).ends) == 60, system.name


def test_the_load_that_a_share_allows_lies_between_the_measured_loads() -> None:
    levels = [{"load": load, "systems": {"a": {"met": share}}} for load, share in ((0.5, 1.0), (1.0, 0.8))]
    assert load_allowed(levels, "a", 0.9) == pytest.approx(0.75)
    assert load_allowed(levels, "a", 0.5) == 1.0


def test_more_workers_serve_more_and_each_request_once() -> None:
    assert met(SLACK, 0.8, workers=4) >= met(SLACK, 0.8) - 0.02
    requests = list(arrivals(WORKER, 1.2, 80, 1, 4))
    for take in ("arrival", "urgent", "whole", "pixels"):
        served = serve(WORKER, System(take, by_slack, take=take), requests, drop=False, seed=1, workers=4)
        assert served.row_steps == 80 * WORKER.steps, take
        assert len(served.ends) == 80


def test_a_worker_takes_no_more_than_it_has_rows() -> None:
    fleet = Fleet(WORKER, System("urgent", by_slack, take="urgent"), 2, drop=False, seed=1)
    (first,) = arrivals(WORKER, 1.0, 1, 1)
    for number in range(20):
        fleet._arrived(replace(first, id=f"{number:06}"))
    assert [state.in_hand for state in fleet._states] == [WORKER.rows, WORKER.rows]
    assert len(fleet._queue) == 20 - 2 * WORKER.rows


def test_one_resolution_fills_a_batch_of_its_own() -> None:
    small, wide = WORKER.kinds[:2]
    (first,) = arrivals(WORKER, 1.0, 1, 1)
    waiting = [replace(first, id=str(n), kind=kind) for n, kind in enumerate((small, wide, small))]
    of = WORKER.seconds(patches=False)
    assert by_resolution(waiting, [], [], 0.0, 4, of).join == ("0", "2")
    assert by_resolution(waiting, [waiting[1]], [], 0.0, 4, of).join == ("1",)


def test_figures_compare_ours_with_the_others() -> None:
    def level(load: float, ours: float, nirvana: float) -> dict[str, object]:
        shares = {system.name: nirvana for system in SYSTEMS} | {"slack": ours, "slack, fewer steps": ours}
        return {"load": load, "systems": {name: {"met": share} for name, share in shares.items()}}

    found = compared([level(0.5, 1.0, 0.95), level(1.0, 0.8, 0.5)])
    assert found["points_above_nirvana"]["slack"] == pytest.approx(17.5)
    assert found["met_where_nirvana_meets_90"]["slack"] == 1.0
    assert found["least_points_above_any_other"]["first come, patches"] == pytest.approx(5.0)


def test_the_command_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--steps", "3", "--count", "10", "--loads", ".5", "1", "--seeds", "1", "--workers", "1", "2"]
    main([*given, "--out", str(tmp_path)])
    figures = json.loads((tmp_path / "deadlines.json").read_text())["figures"]
    assert [level["load"] for level in figures["workers"]["2"]["levels"]] == [0.5, 1.0]
    assert {*figures["workers"]["1"]["mean_met"]} == {system.name for system in SYSTEMS}
    assert min(figures["decision_of_1000_ms"].values()) > 0
    assert "nirvana + orca" in capsys.readouterr().out
