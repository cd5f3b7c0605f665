"""The session trace on a running service with a denoiser that costs nothing: three ways, judged, and resumable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.judging import Verdict
from bench.session_trace import Phase, main, trace_rows
from bench.trace_figures import paired
from load.sessions import MAIN_SIZE, SHIPPED
from shared.models.tiny import build
from shared.settings import Settings


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return build(tmp_path / "models")


def test_three_ways_end_in_one_record_and_are_not_drawn_twice(
    tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work, out = tmp_path / "work", tmp_path / "results"
    command = [
        "--large", "noop:?step_ms=0", "--encoder", str(models / "clip"), "--count", "12", "--block", "5",
        "--think-s", "0.05", "--work", str(work), "--out", str(out), "--judge", str(tmp_path / "no judge"),
    ]  # fmt: skip
    main(command)
    first = json.loads((out / "session_trace.json").read_text())["figures"]
    assert first["requests"] == 12
    assert sum(first["k_histogram"].values()) + first["exact_repeats"] == 12
    assert first["hits"] == sum(n for k, n in first["k_histogram"].items() if k != "0")
    assert first["steps_run"] <= first["steps_asked"]
    hits = {index for index, answer in Phase(work, "cache").answers().items() if answer.hit}
    assert set(Phase(work, "fewer_steps").answers()) == hits
    assert hits
    for name in ("cache", "no_cache"):
        assert len(Phase(work, name).answers()) == 12
        assert len(json.loads((work / name / "seconds.json").read_text())) == 3  # sittings: 5, 5 and 2 rows
    assert {answer.source for answer in Phase(work, "no_cache").answers().values()} == {"noise"}
    assert "12 of 12 rows" in capsys.readouterr().out
    main(command)
    assert "of 12 rows" not in capsys.readouterr().out
    assert json.loads((out / "session_trace.json").read_text())["figures"]["k_histogram"] == first["k_histogram"]


def test_a_phase_broken_off_knows_what_it_has(tmp_path: Path) -> None:
    phase = Phase(tmp_path, "cache")
    assert phase.answers() == {}
    phase.sat(1.5, 2.5, 1)
    phase.sat(2.5, 3.5, 3)
    assert Phase(tmp_path, "cache").each() == (1.0, 1.5)


def test_sizes_the_model_cannot_draw_become_the_main_size(models: Path) -> None:
    settings = Settings(large=str(models / "large"))
    rows, changed = trace_rows(SHIPPED, 50, settings, main_size_only=False)
    assert changed == 0  # the tiny model draws every multiple of eight
    assert {(row.width, row.height) for row in rows} > {MAIN_SIZE}
    rows, changed = trace_rows(SHIPPED, 50, settings, main_size_only=True)
    assert {(row.width, row.height) for row in rows} == {MAIN_SIZE}
    assert changed > 0


def test_pair_by_pair_counts_where_only_one_came_out() -> None:
    right, wrong = Verdict(1.0, {"object": True, "light": True}), Verdict(1.0, {"object": True, "light": False})
    ours = {0: right, 1: right, 2: wrong, 3: right, 4: wrong, 5: Verdict(1.0), 6: right}
    theirs = {0: right, 1: wrong, 2: right, 3: wrong, 4: wrong, 5: right}
    found = paired(range(9), ours, theirs)  # 5 was not judged, 6 has no pair
    assert (found["pictures"], found["ours_alone"], found["theirs_alone"]) == (5, 2, 1)
    assert found["difference"] == pytest.approx(0.2)
    assert found["half_interval"] == pytest.approx(1.96 * (3 - 1 / 5) ** 0.5 / 5)
    assert found["p"] == 1.0
    ten = dict.fromkeys(range(10), right)
    assert paired(range(10), ten, dict.fromkeys(range(10), wrong))["p"] == pytest.approx(2 / 2**10)
    assert paired([6], ours, theirs) == {"pictures": 0}
