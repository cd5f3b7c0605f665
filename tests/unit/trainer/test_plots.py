"""The plots of docs/ are drawn from the tables that ship."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from services.trainer.plots import write_plots
from shared.models.card import BUNDLED


def test_both_plots_are_drawn_from_what_ships(tmp_path: Path) -> None:
    write_plots(BUNDLED, tmp_path)
    for name in ("latency", "k_tables"):
        with Image.open(tmp_path / f"{name}.png") as picture:
            assert picture.width > 400
            assert len(picture.convert("RGB").getcolors(1 << 24) or []) > 10
