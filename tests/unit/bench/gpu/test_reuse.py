"""The benchmark of reuse on a GPU: its small form runs anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench.gpu import reuse


def test_the_small_form_times_each_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse, "quiet", lambda: None)  # for a process of its own
    small = ["--batches", "3", "--shares", "0", "0.5", "--steps", "3", "--rounds", "1"]
    reuse.main(["--tiny", *small, "--out", str(tmp_path)])
    figures = json.loads((tmp_path / "gpu_reuse.json").read_text())["figures"]
    for name, mixed in (("sdxl", "patches"), ("sd3", "packed")):
        (batch,) = figures[name]["batches"]
        arms = batch["arms"]
        assert [*arms] == [
            f"{layout}, {share}" for layout in ("groups", mixed) for share in ("off", "reuse 0", "reuse 0.5")
        ]
        for arm, found in arms.items():
            assert len(found["all_s"]) == 3
            assert found["ms"] > 0
            assert (0.3 < found["reused"] < 0.7) if arm.endswith("0.5") else found["reused"] == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here: it would be measured")
def test_without_a_gpu_nothing_is_measured(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no CUDA device here: nothing was measured"):
        reuse.main(["--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())
