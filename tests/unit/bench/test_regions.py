"""Starts that compute one region: what is kept, what is computed, and what is reported."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bench.regions import Held, Holding, Way, computed, figures_of, grown, report, run
from services.gpu_worker.engine.rows import FromState, Task
from services.gpu_worker.families import load_family
from services.gpu_worker.families.pipeline import PipelineFamily
from shared.domain.types import Size
from shared.models import find_card
from shared.models.quality import Measures


def test_a_region_grows_by_cells_in_all_directions() -> None:
    mask = np.zeros((5, 5), bool)
    mask[2, 2] = True
    assert grown(mask, 1).sum() == 9
    assert grown(mask, 2).all()
    assert (grown(mask, 0) == mask).all()


def test_only_the_held_steps_compute_less() -> None:
    assert computed(Way("plain", 15), 1.0, 50) == pytest.approx(0.7)
    assert computed(Way("region", 15, 35), 0.25, 50) == pytest.approx((20 * 0.25 + 15) / 50)
    assert computed(Way("region", 15, 35), 1.0, 50) == pytest.approx(0.7)


def test_cells_outside_keep_the_source_until_the_last_held_step() -> None:
    family = load_family(find_card("bundled:small"), device="cpu")
    assert isinstance(family, PipelineFamily)
    holding = Holding(family)
    setattr(family, "step", holding)  # noqa: B010 — as the benchmark does
    first = Task("before", "small", "a red fox", Size(64, 64), 5, 1.0, seed=1, capture_steps=(1, 2, 3, 4))
    latents = run(family, [first], 1)[1]["before"]
    mask = torch.zeros(latents[2].shape[1:], dtype=torch.bool)
    mask[:4] = True
    second = replace(first, id="after", prompt="a blue car", start=FromState(latents[2], 2), capture_steps=(3, 4))
    holding.held["after"] = Held(mask, latents, until=3)
    found = run(family, [second], 1)[1]["after"]
    assert np.array_equal(found[3][:, 4:], latents[3][:, 4:])
    assert not np.array_equal(found[3][:, :4], latents[3][:, :4])
    assert not np.array_equal(found[4][:, 4:], latents[4][:, 4:])  # computed again, from the source's cells


def test_figures_compare_with_runs_from_noise() -> None:
    def one(pair: int, way: str, score: float) -> dict[str, object]:
        measures = Measures(score=score, shown=True, contrast=1.0, saturation=1.0, sharpness=1.0, likeness=0.5)
        return {"pair": pair, "kind": "object" if pair else "background", "way": way, "measures": measures,
                "all_right": True, "share": 0.5}  # fmt: skip

    records = [one(pair, way, score) for pair in (0, 1) for way, score in (("noise", 0.8), ("region", 0.4))]
    found = figures_of(records, [Way("region", 10, 30)], 50)
    assert found["both"]["pairs"] == 2
    assert found["object"]["ways"]["region"]["fidelity"] == pytest.approx(0.5)
    assert found["both"]["ways"]["region"]["computed"] == pytest.approx((10 + 20) / 50)
    assert "object (1)" in report(found)
