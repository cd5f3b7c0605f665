"""The page of a profile: values, bounds and marks, and images of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from services.cli.profiles.pairs import scene_pairs
from services.cli.profiles.report import Section, keep_images, report_html
from shared.models.k_table import Cell, KTable
from shared.models.quality import Measured, Quality

ABOUT = {"model": "<large>", "steps": 50, "ks": [5], "seed": 3}


def section(tmp_path: Path, kind: str, quality: Quality | None) -> Section:
    cell = Cell(5, 0.5, 0.75, 30, 1.0, 0.99, quality=quality)
    tables = {0.9: KTable(()), 0.95: KTable((), alpha=0.95, cells=(cell,))}
    return Section(ABOUT, {(kind, 5): cell}, tables, tmp_path / "images", tuple(scene_pairs(10, 3)))


def test_a_measure_outside_its_limit_is_marked(tmp_path: Path) -> None:
    quality = Quality(
        fidelity=Measured(0.96, 0.94, 30),  # ≥ .9 and not ≥ .95, the larger α
        contrast=Measured(0.95, 0.93, 30),
        variety=Measured(0.4, None, 2),
        copying=Measured(0.07, 0.09, 30),
    )
    page = report_html([section(tmp_path, "unrelated", quality)])
    assert "<td class='missed'>0.960 <i>≥ 0.940</i></td>" in page
    assert "<td class='kept'>0.950 <i>≥ 0.930</i></td>" in page
    assert "<td class=''>0.400 <i>n 2</i></td>" in page  # too few prompts prove nothing
    assert "<td class='missed'>0.070 <i>≤ 0.090</i></td>" in page
    assert "&lt;large&gt;" in page
    assert "0.500–0.750" in page
    edited = report_html([section(tmp_path, "colour", quality)])
    assert "<td class='missed'>0.070" not in edited  # an edit may keep the source


def test_a_profile_of_an_earlier_version_has_a_page_without_measures_and_images(tmp_path: Path) -> None:
    page = report_html([section(tmp_path, "colour", None)])
    assert "<td>–</td>" in page
    assert "<img" not in page


def test_images_of_the_first_pair_of_each_kind_are_kept_and_shown(tmp_path: Path) -> None:
    images = {name: np.full((8, 8, 3), 90, np.uint8) for name in ("before", "noise", "noise+1", "5", "5+1")}
    for pair in scene_pairs(12, 3):
        keep_images(tmp_path / "images", pair, images)
    assert len(list((tmp_path / "images").iterdir())) == 10 * len(images)
    page = report_html([section(tmp_path, "colour", None)])
    assert page.count('<img src="data:image/jpeg;base64,') == 10 * len(images)
    assert "from K = 5" in page
