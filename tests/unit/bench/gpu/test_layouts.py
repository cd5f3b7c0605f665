"""The benchmark of layouts on a GPU: its small form runs anywhere, its true form needs a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench.gpu import layouts
from bench.gpu.gpu_shapes import SD35_LARGE, build


def test_the_small_form_times_each_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "quiet", lambda: None)  # for a process of its own
    layouts.main(["--tiny", "--batches", "3", "--rounds", "2", "--out", str(tmp_path)])
    figures = json.loads((tmp_path / "gpu_layouts.json").read_text())["figures"]
    assert {name: [*found["batches"][0]["ms"]] for name, found in figures.items()} == {
        "sdxl": ["groups", "one batch", "not fused"],
        "sd3": ["groups", "one batch"],
    }
    for found in figures.values():
        (batch,) = found["batches"]
        assert all(len(each) == 2 and min(each) > 0 for each in batch["all_s"].values())
        assert batch["gain"] == pytest.approx(batch["ms"]["groups"] / batch["ms"]["one batch"])
        assert 0 < batch["decision_us"] < 1000


def test_the_true_shape_of_sd3_medium() -> None:
    with torch.device("meta"):
        denoiser = build(("SD3Transformer2DModel", {**SD35_LARGE, **layouts.SD3_MEDIUM}))
    assert round(sum(p.numel() for p in denoiser.parameters()) / 1e9, 2) == 2.03  # "2B" in its model card


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here: it would be measured")
def test_without_a_gpu_nothing_is_measured(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no CUDA device here: nothing was measured"):
        layouts.main(["--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())
