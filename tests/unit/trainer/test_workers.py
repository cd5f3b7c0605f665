"""Two workers train as one: they average their weights, agree on when to stop, and leave one checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.trainer.text_to_image.denoiser_training import DenoiserPlan
from services.trainer.training import runs
from services.trainer.workers import train_in_workers
from shared.domain.errors import NotFoundError


def test_without_latents_nothing_is_started(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no latents in .*latents: make them first, with `.* latents`"):
        train_in_workers("large", DenoiserPlan(steps=1), tmp_path, workers=2, teacher=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_two_workers_stop_together_by_the_clock(work: Path, teacher: Path) -> None:
    plan = DenoiserPlan(seconds=0.5, batch=1, average_every=3, other_sizes=0.5, warmup=1)
    train_in_workers("small", plan, work, workers=2, teacher=teacher)
    state = runs.load_checkpoint(work / "small.pt")
    assert state is not None
    assert state["used_s"] >= 0.5
    assert state["step"] % 3 == 0
    assert state["samples"] == state["step"] * 2
