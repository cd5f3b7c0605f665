"""Each part of the ablation does what its name says, and the command writes its figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.virtual_time.ablation import main, step_time, systems
from bench.virtual_time.deadlines import serve
from bench.virtual_time.fleet import SKIPPED, Worker, arrivals
from shared.models import find_card


@pytest.fixture(scope="module")
def worker() -> Worker:
    return Worker(find_card("bundled:large"), rows=4, steps=20)


def test_half_of_the_requests_hit_and_skip_a_share_of_their_steps(worker: Worker) -> None:
    asked = list(arrivals(worker, 1.0, 2000, seed=1, hits=0.5))
    left = [one.steps for one in asked]
    assert {*left} == {20} | {20 - round(20 * share) for share in SKIPPED}
    assert 0.45 < sum(steps < 20 for steps in left) / len(left) < 0.55
    misses = list(arrivals(worker, 1.0, 2000, seed=1))
    for requests in (asked, misses):
        (none,) = (system for system in systems() if system.name == "none")
        assert serve(worker, none, requests, drop=False, seed=1).row_steps == sum(one.steps for one in requests)


def test_reuse_shortens_the_steps_of_both_layouts(worker: Worker) -> None:
    of = {system.name: system for system in systems()}
    one = list(arrivals(worker, 0.1, 1, seed=1))
    ends = {name: serve(worker, of[name], one, drop=False, seed=1).ends["000000"] - one[0].since for name in of}
    decode_s = worker.seconds(patches=True).decode_s(one[0].pixels)
    for layout, without, with_reuse in (("groups", "none", "reuse"), ("patches", "layout", "all but scheduler")):
        assert ends[with_reuse] - decode_s == pytest.approx(step_time(layout) * (ends[without] - decode_s))


def test_the_command_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--steps", "3", "--count", "10", "--loads", ".5", "2", "--seeds", "1", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "ablation.json").read_text())["figures"]["workers"]
    assert {*found} == {"1", "4"}
    assert {*found["4"]["0.5"]} == {system.name for system in systems()}
    assert "all but layout" in capsys.readouterr().out
