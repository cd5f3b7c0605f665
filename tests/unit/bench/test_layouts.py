"""The benchmark of layouts measures every part on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import layouts
from tests import tiny


def test_each_part_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "quiet", lambda: None)  # for a process of its own
    model = tiny.build(tmp_path, clip=False) / "large"
    small = ["--fitted", "8", "--mixes", "3", "--rounds", "1", "--rows", "3", "--batches", "3"]
    layouts.main(["--model", str(model), *small, "--out", str(tmp_path / "results")])
    figures = json.loads((tmp_path / "results" / "layouts.json").read_text())["figures"]
    assert figures["costs"]["layout"] == "patches"
    auto = figures["auto"]
    assert len(auto["mixes"]) == 3
    assert all(len(row["mix"]) > 1 and row["chosen"] in ("groups", "one batch") for row in auto["mixes"])
    assert min(auto["total"].values()) > 0
    assert 1 <= auto["worst"]["auto, by its layout's own steps"] <= auto["worst"]["groups"] * auto["worst"]["one batch"]
    (batch,) = figures["batches"]
    assert batch["requests"] == 3
    for name, seconds in batch["seconds"].items():  # the operators make up the step
        assert sum(kind[name] for kind in batch["ms"].values()) == pytest.approx(1000 * seconds)
        assert batch["ms"]["convolution"][name] > 0

    layouts.main(["--model", str(model), "--steps", "3", "--out", str(tmp_path / "results")])
    apart = json.loads((tmp_path / "results" / "layouts_steps.json").read_text())["figures"]["apart"]
    assert len(apart) == 3
    assert all(0 <= difference < 1e-4 for difference, _ in apart.values())
