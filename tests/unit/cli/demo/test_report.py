"""The report of a demo needs nothing but itself."""

from __future__ import annotations

import re
from dataclasses import replace

from services.cli.demo.report import contact_sheet, report_html
from shared.domain.types import PlanSource
from tests.unit.cli.views import row

ROWS = [
    row("a fox", PlanSource.NOISE, 0, 2.0, 2.0),
    row("a <i>red</i> fox", PlanSource.LATENT, 20, 1.2, 2.0),
    row("a fox", PlanSource.EXACT, 0, 0.01, 2.0),
]


def test_the_report_opens_from_disk_and_trusts_no_prompt() -> None:
    page = report_html(ROWS)
    assert "<i>red</i>" not in page
    assert "a dog &lt;b&gt;" in page
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert page.count("data:image/png;base64,") == 9  # three of each request
    assert "<b>80 of 100 steps</b>" in page
    assert "mind the gap" in page
    assert "<td>edit of the user's own prompts</td><td>2</td><td>80 of 100</td><td>20%</td>" in page
    assert "5 steps each from noise, without a cache, save 90%" in page
    assert "Their CLIP score is 0.500 of that of all steps; with the cache it is 1.000." in page
    assert "Variety" not in page  # no prompt has two seeds


def test_the_contact_sheet_holds_every_picture() -> None:
    sheet = contact_sheet(ROWS, columns=2)
    red = [sheet.getpixel((30 + x, 30 + y)) for x, y in ((0, 0), (180, 0), (0, 244))]
    assert red == [(255, 0, 0)] * 3


def test_a_hit_shows_the_picture_it_started_from_where_the_session_drew_it() -> None:
    first, hit, _ = ROWS
    known = replace(first, picture=replace(first.picture, job=replace(first.picture.job, id="e1")))
    page = report_html([known, hit])
    assert page.count("data:image/png;base64,") == 7  # three pictures each, and the first once more beside the second
    before, _, fold = page.partition("<details>")
    assert "it started from 1: “a dog &lt;b&gt;”" in before
    assert "<summary>1 candidate</summary>" in fold
    unknown = report_html([hit])
    assert unknown.count("data:image/png;base64,") == 3
    assert "it started from “a dog &lt;b&gt;”" in unknown.partition("<details>")[0]
