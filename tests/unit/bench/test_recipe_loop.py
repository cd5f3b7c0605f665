"""The settings of the comparison with the recipe's loop survive the file that `train run` reads."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from bench.recipe_loop import settings_for, written
from services.trainer.finetuning.settings import read_run_settings


def test_the_other_loop_reads_the_same_settings(tmp_path: Path) -> None:
    asked = Namespace(iterations=8, every=4, batch=4, scenes=40, rate=5e-5, warmup=1, sprites=Path("sprites"))
    settings = settings_for(tmp_path / "out", asked)
    assert read_run_settings(written(settings, tmp_path), {}) == settings
