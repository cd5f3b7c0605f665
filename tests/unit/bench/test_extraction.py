"""Scores of extractors: F1 by places in the text, and the committed labels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.extraction.scoring import LABELS, LATER, Labelled, Split, captions, exact, judged, token_f1
from services.text_extractor.grammar import Grammar


@pytest.mark.parametrize(("path", "count"), [(LABELS, 150), (LATER, 50)])
def test_labels_are_borders_alone(path: Path, count: int) -> None:
    rows = json.loads(path.read_text(encoding="utf-8"))["labels"]
    assert len({row["row"] for row in rows}) == len(rows) == count
    for row in rows:
        assert row.keys() == {"row", "object", "background"}
        spans = [span for span in (row["object"], row["background"]) if span]
        assert all(0 <= start < end for start, end in spans)
        assert len(spans) < 2 or spans[0][1] <= spans[1][0] or spans[1][1] <= spans[0][0]


def test_words_count_by_their_places() -> None:
    text = "a fox and a fox"
    assert token_f1(text, (0, 5), (0, 5)) == 1
    assert token_f1(text, (0, 5), (10, 15)) == 0
    assert token_f1(text, (0, 5), (2, 5)) == pytest.approx(2 / 3)
    assert token_f1(text, None, None) == 1
    assert token_f1(text, None, (0, 5)) == 0


def test_figures_of_two_prompts() -> None:
    rows = [Labelled("a fox in the snow", (0, 5), (6, 17)), Labelled("a robot", (0, 7), None)]
    figures = judged(Grammar(), rows)
    assert (figures["object_f1"], figures["background_f1"], figures["sure"]) == (1, 1, 1)
    assert (figures["both_sure"], figures["both_sure_and_named"], figures["both_named"]) == (1, 1, 1)
    assert judged(Split(), [])["rows"] == 0


def test_held_out_captions_are_exact_for_the_grammar() -> None:
    assert exact(Grammar(), list(captions(40, 1, untrained=True)))["exact"] >= 0.97
