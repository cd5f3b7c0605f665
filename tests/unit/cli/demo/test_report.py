"""What a demo says of itself adds up, and its report needs nothing but itself."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from services.cli.demo.report import contact_sheet, report_html, summary, totals
from shared.domain.types import PlanSource
from tests.unit.cli.views import row

ROWS = [
    row("a fox", PlanSource.NOISE, 0, 2.0, 2.0),
    row("a <i>red</i> fox", PlanSource.LATENT, 20, 1.2, 2.0),
    row("a fox", PlanSource.EXACT, 0, 0.01, 2.0),
]


def test_exact_repeats_are_totalled_apart() -> None:
    drawn, repeats = totals(ROWS)
    assert (drawn.pictures, drawn.steps_total, drawn.steps_run) == (2, 100, 80)
    assert (drawn.seconds_with_cache, drawn.seconds_without_cache) == (3.2, 4.0)
    assert round(drawn.steps_saved, 9) == 0.2
    assert round(drawn.seconds_saved, 9) == 0.2
    assert (repeats.pictures, repeats.steps_run, repeats.steps_total) == (1, 0, 50)


def test_time_that_did_not_follow_the_steps_is_doubted_and_never_saved_below_nothing() -> None:
    slow = [row("a fox", PlanSource.LATENT, 20, 2.2, 2.0)]
    drawn, _ = totals(slow)
    assert drawn.time_in_words == "10% more"
    assert "do not follow the steps" in drawn.doubt
    assert drawn.doubt in report_html(slow)
    as_saved, _ = totals(ROWS)
    assert (as_saved.time_in_words, as_saved.doubt) == ("20% saved", "")


def test_the_summary_has_the_promised_keys() -> None:
    read = json.loads(summary(ROWS))
    promised = {"pictures", "steps_total", "steps_run", "seconds_with_cache", "seconds_without_cache"}
    assert promised <= read.keys()
    assert (read["pictures"], read["steps_total"], read["steps_run"]) == (2, 100, 80)
    assert len(read["requests"]) == 3
    table = {"prompt", "source", "similarity", "start_step", "steps", "steps_run", "seconds"}
    assert all(table <= request.keys() for request in read["requests"])
    assert read["exact_repeats"]["pictures"] == 1


def test_the_report_opens_from_disk_and_trusts_no_prompt() -> None:
    page = report_html(ROWS)
    assert "<i>red</i>" not in page
    assert "a dog &lt;b&gt;" in page
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert page.count("data:image/png;base64,") == 6
    assert "<b>80 of 100 steps</b>" in page
    assert "mind the gap" in page


def test_the_contact_sheet_holds_every_picture() -> None:
    sheet = contact_sheet(ROWS, columns=2)
    red = [sheet.getpixel((30 + x, 30 + y)) for x, y in ((0, 0), (180, 0), (0, 244))]
    assert red == [(255, 0, 0)] * 3


def test_totals_of_nothing_divide_by_nothing() -> None:
    drawn, repeats = totals([])
    assert (drawn.steps_saved, drawn.seconds_saved, repeats.pictures) == (0.0, 0.0, 0)


def test_a_hit_shows_the_picture_it_started_from_where_the_session_drew_it() -> None:
    first, hit, _ = ROWS
    known = replace(first, picture=replace(first.picture, job=replace(first.picture.job, id="e1")))
    page = report_html([known, hit])
    assert page.count("data:image/png;base64,") == 5  # two pictures each, and the first once more beside the second
    before, _, fold = page.partition("<details>")
    assert "it started from 1: “a dog &lt;b&gt;”" in before
    assert "<summary>1 candidate</summary>" in fold
    unknown = report_html([hit])
    assert unknown.count("data:image/png;base64,") == 2
    assert "it started from “a dog &lt;b&gt;”" in unknown.partition("<details>")[0]
