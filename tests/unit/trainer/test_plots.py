"""The plots of docs/ are drawn from the tables that ship."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

from services.trainer.plots import k_table_panels, write_plots
from shared.models.card_lookup import BUNDLED


def test_both_plots_are_drawn_from_what_ships(tmp_path: Path) -> None:
    write_plots(BUNDLED, tmp_path)
    for name in ("latency", "k_tables"):
        with Image.open(tmp_path / f"{name}.png") as picture:
            assert picture.width > 400
            assert len(picture.convert("RGB").getcolors(1 << 24) or []) > 10


def test_every_k_that_some_table_allows_lies_inside_its_panel() -> None:
    shipped = [json.loads(path.read_text()) for path in BUNDLED.glob("*/*k_table_*.json")]
    _, panels = k_table_panels(BUNDLED)
    shown = []
    for panel in panels:
        left, right = panel.get_xlim()
        shown += [int(k) for line in panel.lines for k in line.get_xdata() if left < k < right]
    assert sorted(shown) == sorted(level["k"] for table in shipped for level in table["levels"])
