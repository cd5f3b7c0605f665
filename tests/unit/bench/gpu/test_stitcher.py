"""The benchmark of the boundary stitcher: its small form runs anywhere, its true form needs a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench.gpu import stitcher


def test_the_small_form_times_each_way(tmp_path: Path) -> None:
    stitcher.main(["--tiny", "--out", str(tmp_path)])
    (level,) = json.loads((tmp_path / "gpu_stitcher.json").read_text())["figures"]["levels"]
    assert level["patches"] == 2 * (4 + 9 + 16)
    assert min(level[name] for name in ("one_by_one_ms", "stitched_ms", "convolution_ms")) > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here: it would be measured")
def test_without_a_gpu_nothing_is_measured(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no CUDA device here: nothing was measured"):
        stitcher.main(["--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())
