"""The simulated profiles have the paper's shares, and the figures have its order."""

from __future__ import annotations

import pytest

from bench.pipeline.paper_profiles import HERE, MODELS, cascade_profile, facts, paper_profile
from bench.pipeline_simulated import ablation, bubbles, floor_of, report
from services.trainer.pipeline.costs.profile_file import read_profile
from services.trainer.pipeline.plans import make_plan
from services.trainer.pipeline.settings import PlanSettings


@pytest.mark.parametrize("model", MODELS)
def test_the_profiles_have_the_shares_of_tables_1_and_2(model: str) -> None:
    known, profile = facts(), paper_profile(model)
    backbone = profile.backbones[0]
    layers = range(len(backbone.layers))
    trainable = {
        batch: sum(backbone.forward_s(at, batch) + backbone.backward_s(at, batch) for at in layers)
        for batch in known["frozen_share"]["batches"]
    }
    shares = [profile.frozen_s(batch) / seconds for batch, seconds in trainable.items()]
    assert shares == pytest.approx(known["frozen_share"][model])
    gradients = sum(layer.gradient_bytes for layer in backbone.layers)
    computed = trainable[8] + profile.frozen_s(8)
    for devices, share in zip(known["sync_share"]["devices"], known["sync_share"][model], strict=True):
        sync = profile.all_reduce_s(gradients, devices)
        assert sync / (sync + computed) == pytest.approx(share)


@pytest.mark.parametrize("model", MODELS)
def test_the_written_profiles_are_those_that_the_facts_make(model: str) -> None:
    assert read_profile(HERE / f"{model}.json") == paper_profile(model)


def test_the_floor_is_the_idle_time_that_frozen_work_cannot_fill() -> None:
    profile = paper_profile("sd-2.1").model_copy(update={"frozen": ()})
    settings = PlanSettings(batch=64, devices=2)
    plan = make_plan(profile, profile.backbones, settings, stages=2, micro_batches=4, group=2)
    assert plan is not None
    assert floor_of(plan, settings) == pytest.approx(plan.bubble_share)
    whole = make_plan(paper_profile("sd-2.1"), profile.backbones, settings, stages=2, micro_batches=4, group=2)
    assert whole is not None
    assert floor_of(whole, settings) == 0


def test_partial_batches_and_filling_both_pay_in_the_order_of_fig_15() -> None:
    speeds = ablation(paper_profile("controlnet-1.0"), batches=(256,), ways=("fixed",))["256"]["fixed"]
    assert speeds["whole"] > speeds["without partial batches"] > speeds["without filling"]


def test_the_report_has_a_row_for_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.pipeline_simulated.STAGES", (2,))
    monkeypatch.setattr("bench.pipeline_simulated.MICRO_BATCHES", (4,))
    found = bubbles(paper_profile("controlnet-1.0"), PlanSettings())
    one = found["S=2 M=4"]
    assert one["floor"] <= one["beam"] <= one["greedy"] < one["before"]
    text = report(
        {
            "bubbles": {"controlnet-1.0": found},
            "bubbles, small batch": {"controlnet-1.0": found},
            "ablation": {},
            "throughput": {},
            "cascade": {"8": {"bidirectional": 2.0, "sequential": 1.0, "halves": 1.0, "memory": {}}},
            "planning_s": {"partition, all plans": 0.5},
        }
    )
    assert "| S=2 M=4 |" in text
    assert "above the floor (S=2 M=4)" in text
    assert "| 8 | 2 | 1 | 1 |" in text
    assert len(cascade_profile().backbones) == 2
