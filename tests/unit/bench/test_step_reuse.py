"""The benchmark of the reuse between steps: it works on a tiny model, and all patches of a batch reuse or none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from bench import step_reuse
from bench.measuring.step_caches import CACHES
from tests import tiny
from tests.unit.gpu_worker.engine.reuse.conftest import Decided


def test_all_patches_reuse_or_none() -> None:
    policy = step_reuse.AllOrNone(Decided(lambda block, places: places < 2 + block))
    assert policy.reused(0, None, np.zeros(2, dtype=int), np.zeros(2)).tolist() == [True, True]
    assert policy.reused(0, None, np.zeros(3, dtype=int), np.zeros(3)).tolist() == [False] * 3
    assert policy.reused(1, None, np.zeros(3, dtype=int), np.zeros(3)).tolist() == [True] * 3


def test_every_way_of_both_layouts_is_measured(tmp_path: Path) -> None:
    models = tiny.build(tmp_path / "models", seed=1)
    given = ["--tiny", "--model", models / "large", "--encoder", models / "clip", "--out", tmp_path, "--change", "1"]
    step_reuse.main([str(each) for each in given])
    figures = json.loads((tmp_path / "step_reuse.json").read_text())["figures"]
    for layout, ways in (("groups", {"nothing", "images"}), ("patches", {"nothing", "patches", "batch"})):
        one = figures[layout]["sizes"]["64x64"]
        assert set(one["ways"]) == ways
        assert one["ways"]["nothing"]["reused"] == 0 < one["small_changes"]
    patches = figures["patches"]["sizes"]["64x64"]["ways"]
    assert patches["batch"]["reused"] <= patches["patches"]["reused"] > 0
    assert set(figures["baselines"]) == set(CACHES)
