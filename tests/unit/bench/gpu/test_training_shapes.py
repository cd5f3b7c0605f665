"""The benchmark of training shapes: its small form runs anywhere, its true form needs a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench.gpu import training_shapes
from services.trainer.pipeline.costs.profile import Backbone, FrozenComponent


def test_the_small_form_measures_layers_in_the_planners_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_shapes, "quiet", lambda: None)  # for a process of its own
    threads = torch.get_num_threads()
    try:
        training_shapes.main(["--tiny", "--models", "controlnet-1.0", "--repeats", "1", "--out", str(tmp_path)])
    finally:
        torch.set_num_threads(threads)
    found = json.loads((tmp_path / "gpu_training_shapes.json").read_text())["figures"]["controlnet-1.0"]
    backbone = Backbone.model_validate(found["backbone"], strict=False)
    frozen = [FrozenComponent.model_validate(one, strict=False) for one in found["frozen"]]
    assert [one.name for one in frozen] == ["text", "vae", "locked encoder"]
    for size, share in zip(found["local_batch_sizes"], found["frozen_share"], strict=True):
        trained = sum(
            backbone.forward_s(at, size) + backbone.backward_s(at, size) for at in range(len(backbone.layers))
        )
        assert share == pytest.approx(sum(one.whole_s(size) for one in frozen) / trained)


def test_the_true_shapes() -> None:
    from diffusers import UNet2DConditionModel

    with torch.device("meta"):
        counts = [sum(one.numel() for one in UNet2DConditionModel(**shape).parameters())
                  for shape in (training_shapes.SD21, training_shapes.SD15)]  # fmt: skip
    assert [round(count / 1e6) for count in counts] == [866, 860]  # as in their model cards


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here: it would be measured")
def test_without_a_gpu_nothing_is_measured(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no CUDA device here: nothing was measured"):
        training_shapes.main(["--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())
