"""The comparison on real ranks: its plans and figures, from a made-up profile; ranks are tested with the runtime."""

from __future__ import annotations

import pytest

from bench import pipeline_real
from services.trainer.pipeline.costs.profile import Link, Profile
from tests.unit.trainer.pipeline.profiles import backbone, frozen

BATCH = 16


def test_figures_compare_measured_with_predicted_times() -> None:
    profile = Profile(
        backbones=(backbone([0.01] * 8),), frozen=(frozen([0.01] * 4, name="vae"),),
        p2p=Link(bandwidth_bytes_per_s=1e12),
    )  # fmt: skip
    plans, settings = pipeline_real.planned(profile, BATCH, False)
    assert set(plans) == set(pipeline_real.PIPELINES)
    assert plans["gpipe"].micro_batches == 4
    slower = {name: [1.05 * plan.seconds] * 3 for name, plan in plans.items()}
    found = pipeline_real.figures_of(profile, plans, settings, slower, {})
    assert all(error == pytest.approx(0.05) for error in found["error"].values())
    assert found["gain"] == pytest.approx(plans["unfilled"].seconds / plans["filled"].seconds)
    assert 0.5 < found["of_floor"] <= 1 + 1e-9
    assert found["frozen_share"] == pytest.approx(4 / (8 * 3))
    assert "DDP" in found["verdict"]
