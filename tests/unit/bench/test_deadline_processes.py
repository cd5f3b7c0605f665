"""Deadlines of real processes: the load, what counts, and the baselines' workers."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench import deadline_processes
from bench.deadline_processes import WAYS, Outcome, Way, arrivals, judged, main
from bench.serving.baseline_worker import FirstCome
from services.gpu_worker.engine.rows import Task
from shared.domain.types import Size
from shared.models import find_card
from tests.unit.gpu_worker.engine.conftest import task

CARD = find_card("bundled:large")


def test_requests_arrive_at_the_rate_in_all_sizes() -> None:
    asked = arrivals(CARD, 4.0, 2000, seed=1)
    assert len(asked) / asked[-1].at == pytest.approx(4.0, rel=0.1)
    counts = Counter(one.size for one in asked)
    assert set(counts) == {*CARD.sizes.sizes}
    assert min(counts.values()) > 400
    assert arrivals(CARD, 4.0, 2000, seed=1) == asked


def test_the_first_fifth_does_not_count() -> None:
    asked = arrivals(CARD, 1.0, 10, seed=2)
    found = judged([Outcome(one, n >= 4, 1.0 + n) for n, one in enumerate(asked)])
    assert (found["counted"], found["met"]) == (8, 0.75)
    assert found["seconds_p50"] == pytest.approx(7.5)
    assert set(found["met_by_size"]) <= {str(size) for size in CARD.sizes.sizes}


@dataclass
class Riding:
    """What the scheduler reads of a row."""

    task: Task


def joins(waiting: list[Task], running: list[Task], *, one_resolution: bool, now: float = 0.0) -> tuple[str, ...]:
    rows: list[Any] = [Riding(one) for one in running]
    scheduler = FirstCome(3, one_resolution=one_resolution)
    return scheduler.decide(waiting, rows, frozenset(), now, 8, math.inf, {}).join


def test_baselines_take_who_came_first_and_one_of_them_one_size_at_a_time() -> None:
    wide = Size(96, 64)
    waiting = [task("c", arrived=3, deadline_at=1.0), task("b", arrived=2, size=wide), task("a", arrived=1)]
    assert joins(waiting, [], one_resolution=False) == ("a", "b", "c")
    assert joins(waiting, [], one_resolution=True) == ("a", "c")
    assert joins(waiting, [task("x", size=wide)], one_resolution=True) == ("b",)
    assert joins(waiting, [task("x"), task("y")], one_resolution=False) == ("a",)
    late = [task("a", arrived=1, deadline_at=1.0, drop_if_late=True), task("b", arrived=2)]
    assert joins(late, [], one_resolution=False, now=2.0) == ("b",)


def test_an_interrupted_run_goes_on_and_a_finished_one_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    level = {"met": 0.9, "met_by_size": {"64x64": 0.8}, "counted": 16, "seconds_p50": 1.0}
    reference, work = {"alone_s": {"64x64": 1.0}, "capacity_per_s": 2.0}, tmp_path / "work_tiny"
    asked: list[str] = []

    def served(way: Way, *_: object) -> dict[str, object]:
        asked.append(way.name)
        return reference if len(asked) == 1 else {"title": way.title, "levels": {"0.7": level}}

    monkeypatch.setattr(deadline_processes, "missing", lambda _: [])
    monkeypatch.setattr(deadline_processes, "served", served)
    main(["--tiny", "--work", str(tmp_path / "work"), "--out", str(tmp_path), "--ways", "slack", "nirvana_orca"])
    assert asked == ["slack", "slack", "nirvana_orca"]
    figures = json.loads((tmp_path / "deadline_processes_tiny.json").read_text())["figures"]
    assert figures["systems"]["nirvana_orca"]["levels"]["0.7"]["met"] == 0.9
    assert "nirvana + orca" in capsys.readouterr().out
    assert not list(work.iterdir())


def test_every_way_has_a_name_of_its_own() -> None:
    assert len({way.name for way in WAYS}) == len(WAYS)
