"""Profiles of GPUs: what was measured on one, with links that are given."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench.pipeline import gpu_profiles
from services.trainer.pipeline.costs.profile_file import read_profile


def test_the_profiles_have_the_measured_layers_and_the_given_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_profiles", str(tmp_path), "--p2p", "12e9", "--all-reduce", "6e9"])
    gpu_profiles.main()
    measured = json.loads(gpu_profiles.SHAPES.read_text())["figures"]
    for name, figures in measured.items():
        profile = read_profile(tmp_path / f"{name}.json")
        largest = figures["local_batch_sizes"][-1]
        assert profile.frozen_s(largest) == pytest.approx(figures["frozen_s"][-1])
        assert profile.p2p.seconds(12e9) == pytest.approx(1, rel=1e-3)
        assert profile.all_reduce_s(6e9, 8) == pytest.approx(1, rel=1e-3)
