"""Profiles of real layers: names, bytes and times that the planner reads."""

from __future__ import annotations

import pytest
import torch

from services.trainer.pipeline.runtime.profiling import measured_profile
from services.trainer.pipeline.search import best_plan
from services.trainer.pipeline.settings import PlanSettings
from tests.unit.trainer.pipeline.runtime.tiny_jobs import SIDE, Case, Samples, new_job

FLOAT = 4


def test_a_profile_of_a_controlnet() -> None:
    training = new_job(Case("controlnet twice"))
    batch = Samples(0, 0, 4, 4)
    profile = measured_profile(training, batch, (1, 4), torch.device("cpu"), repeats=1, source="a test")
    chain, backbone = training.backbones[0].chain, profile.backbones[0]
    assert [one.name for one in backbone.layers] == [one.name for one in chain.layers]
    trained = sum(one.numel() for layer in chain.layers for one in layer.parameters().values() if one.requires_grad)
    assert sum(layer.gradient_bytes for layer in backbone.layers) == FLOAT * trained
    locked = [layer for layer in backbone.layers if layer.name.startswith("locked.")]
    assert locked
    for layer in locked:
        assert layer.gradient_bytes == 0
        assert layer.parameter_bytes > 0
        assert min(layer.backward_s) > 0, "gradients pass through"
    assert all(layer.activation_bytes_per_sample > 0 for layer in backbone.layers if "resnets" in layer.name)
    assert backbone.layers[-1].output_bytes_per_sample == FLOAT * 4 * SIDE * SIDE
    assert [one.name for one in profile.frozen] == ["text", "vae", "locked encoder"]
    assert profile.frozen[2].after == ("vae", "text")
    assert best_plan(profile, PlanSettings(batch=8, devices=2, minimum_bubble_s=0)) is not None


def test_a_tensor_with_two_names_is_sent_once() -> None:
    training = new_job(Case("unet"))
    profile = measured_profile(training, Samples(0, 0, 2, 2), (2,), torch.device("cpu"), repeats=1)
    first = profile.backbones[0].layers[0]
    hidden = 8 * SIDE * SIDE
    assert set(training.backbones[0].chain.crossing(1)) == {"hidden", "skip.0", "emb"}
    assert first.output_bytes_per_sample == pytest.approx(FLOAT * (hidden + 32))
