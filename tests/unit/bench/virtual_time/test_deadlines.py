"""Deadlines of one worker in virtual time: what is served, counted and dropped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.virtual_time.deadlines import (
    SLO,
    SYSTEMS,
    System,
    Worker,
    arrivals,
    by_arrival,
    by_slack,
    judged,
    load_allowed,
    main,
    serve,
)
from shared.models import find_card

WORKER = Worker(find_card("bundled:large"), rows=4, steps=10)
SLACK, FIRST = System("slack", by_slack), System("first", by_arrival)


def met(system: System, load: float, *, drop: bool = True) -> float:
    requests = list(arrivals(WORKER, load, 120, seed=1))
    return judged(WORKER, requests, serve(WORKER, system, requests, drop=drop, seed=1))["met"]


def test_requests_arrive_at_the_load_with_deadlines_of_their_size() -> None:
    requests = list(arrivals(WORKER, 0.5, 2000, seed=3))
    assert len(requests) / requests[-1].since == pytest.approx(0.5 * WORKER.capacity, rel=0.1)
    for one in requests[:20]:
        assert one.deadline_at == pytest.approx(one.since + SLO * WORKER.alone_s(one.kind))
    assert {one.kind for one in requests} == {*WORKER.kinds}


def test_one_request_alone_takes_its_standalone_time() -> None:
    (only,) = arrivals(WORKER, 0.01, 1, seed=1)
    served = serve(WORKER, SLACK, [only], drop=True, seed=1)
    assert served["ends"][only.id] - only.since == pytest.approx(WORKER.alone_s(only.kind), rel=0.1)
    assert served["row_steps"] == WORKER.steps


def test_everybody_is_in_time_at_a_low_load_and_slack_meets_more_at_a_high_one() -> None:
    assert met(SLACK, 0.1) == met(FIRST, 0.1) == 1.0
    assert met(SLACK, 1.2) > met(FIRST, 1.2) + 0.05


def test_nobody_is_dropped_if_all_are_kept() -> None:
    requests = list(arrivals(WORKER, 1.5, 60, seed=1))
    for system in SYSTEMS:
        assert len(serve(WORKER, system, requests, drop=False, seed=1)["ends"]) == 60, system.name


def test_the_load_that_a_share_allows_lies_between_the_measured_loads() -> None:
    levels = [{"load": load, "systems": {"a": {"met": share}}} for load, share in ((0.5, 1.0), (1.0, 0.8))]
    assert load_allowed(levels, "a", 0.9) == pytest.approx(0.75)
    assert load_allowed(levels, "a", 0.5) == 1.0


def test_the_command_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--steps", "5", "--count", "20", "--loads", ".5", "1", "--seeds", "1", "--out", str(tmp_path)])
    figures = json.loads((tmp_path / "deadlines.json").read_text())["figures"]
    assert [level["load"] for level in figures["levels"]] == [0.5, 1.0]
    assert {*figures["mean_met"]} == {system.name for system in SYSTEMS}
    assert figures["decision_of_1000_ms"] > 0
    assert "nirvana + orca" in capsys.readouterr().out
