"""Starts that compute only what changes: what runs give, and what is reported."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.regions import Way, figures_of, report, run
from services.gpu_worker.engine.rows import FromState, Region, Task
from services.gpu_worker.families import load_family
from services.gpu_worker.families.pipeline import PipelineFamily
from shared.domain.types import Size
from shared.models import find_card
from shared.models.quality import Measures


def test_a_run_gives_images_latents_and_what_it_skipped() -> None:
    family = load_family(replace(find_card("bundled:small"), regions=True), layout="patches", patch_px=16)
    assert isinstance(family, PipelineFamily)
    first = Task("before", "small", "a red fox", Size(64, 64), 14, 1.0, seed=1, capture_steps=(5,))
    before = run(family, [first], 1)
    assert sorted(before.latents) == ["before@5"]
    assert before.skipped == {"before": 0.0}
    start = FromState(before.latents["before@5"], 5, region=Region(before.images["before"], 13))
    again = run(family, [replace(first, id="again", start=start)], 1)
    assert again.images["again"].shape == (64, 64, 3)
    assert again.skipped["again"] > 0.0  # the same prompt changes few patches
    assert np.abs(again.images["again"].astype(float) - before.images["before"]).mean() < 8
    assert again.cpu_s > 0


def test_figures_compare_with_runs_from_noise() -> None:
    def one(pair: int, way: str, score: float, skipped: float = 0.0) -> dict[str, object]:
        measures = Measures(score=score, shown=True, contrast=1.0, saturation=1.0, sharpness=1.0, likeness=0.5)
        return {"pair": pair, "kind": "object" if pair else "background", "way": way, "measures": measures,
                "all_right": True, "skipped": skipped, "seconds": 2.0}  # fmt: skip

    records = [one(pair, "noise", 0.8) for pair in (0, 1)] + [one(pair, "region", 0.4, 0.25) for pair in (0, 1)]
    found = figures_of(records, [Way("region", 10, region=True)], 50)
    assert found["both"]["pairs"] == 2
    assert found["object"]["ways"]["region"]["fidelity"] == pytest.approx(0.5)
    assert found["both"]["ways"]["region"]["computed"] == pytest.approx(0.8 * 0.75)
    assert found["both"]["noise"] == {"all_right": 1.0, "computed": 1.0, "seconds": 2.0}
    assert "object (1)" in report(found)
