"""What a demo says of itself adds up."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from services.cli.demo.figures import few_steps, saved_by_relation, summary, totals, variety
from services.cli.demo.report import few_in_words, report_html, variety_in_words
from shared.domain.types import PlanSource
from tests.unit.cli.views import row, unit

ROWS = [
    row("a fox", PlanSource.NOISE, 0, 2.0, 2.0, "topic"),
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
    promised |= {"saved_by_relation", "variety", "few_steps"}
    assert promised <= read.keys()
    assert (read["pictures"], read["steps_total"], read["steps_run"]) == (2, 100, 80)
    assert len(read["requests"]) == 3
    table = {"prompt", "source", "relation", "similarity", "start_step", "steps", "steps_run", "seconds"}
    assert all(table <= request.keys() for request in read["requests"])
    assert read["exact_repeats"]["pictures"] == 1


def test_totals_of_nothing_divide_by_nothing() -> None:
    drawn, repeats = totals([])
    assert (drawn.steps_saved, drawn.seconds_saved, repeats.pictures) == (0.0, 0.0, 0)
    assert saved_by_relation([]) == {}
    assert (few_steps([]).clip_ratio, variety([]).share) == (None, None)


def test_savings_are_split_by_relation_without_exact_repeats() -> None:
    found = saved_by_relation([*ROWS, row("a blue fox", PlanSource.LATENT, 10, 1.6, 2.0)])
    assert {name: (one.pictures, one.steps_run, one.steps_total) for name, one in found.items()} == {
        "edit": (2, 70, 100),
        "topic": (1, 50, 50),
    }
    read = json.loads(summary(ROWS))
    assert read["saved_by_relation"]["edit"]["steps_saved"] == pytest.approx(0.4)


def test_variety_compares_the_seeds_of_one_prompt_with_and_without_the_cache() -> None:
    first, other, repeat = ROWS
    assert variety(ROWS).share is None  # an exact repeat is no second image
    turned = replace(first.embeddings, picture=unit(60), without=unit(90))
    again = replace(first, embeddings=turned)
    found = variety([first, again, other, repeat])
    assert (found.prompts, found.pictures) == (1, 2)
    assert (found.with_cache, found.without_cache) == pytest.approx((0.5, 1.0))
    assert found.share == pytest.approx(0.5)
    assert "2 images of 1 prompt with different seeds differ 50% as much" in variety_in_words(found)
    assert json.loads(summary([first, again]))["variety"]["share"] == pytest.approx(0.5)


def test_few_steps_are_judged_like_the_cache_and_only_where_a_clip_score_says_anything() -> None:
    found = few_steps(ROWS)
    assert (found.steps, found.pictures, found.steps_run) == (5, 2, 10)
    assert (found.clip_ratio, found.clip_ratio_with_cache) == pytest.approx((0.5, 1.0))
    assert json.loads(summary(ROWS))["few_steps"]["steps_saved"] == pytest.approx(0.9)
    blind = replace(ROWS[0], embeddings=replace(ROWS[0].embeddings, without=unit(180)))
    assert few_steps([blind]).clip_ratio is None
    assert "CLIP" not in few_in_words(few_steps([blind]))
