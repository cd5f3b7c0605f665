"""Long work says stage, share, rate and time left: lines where the output is a file, bars on a terminal."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest
from rich.console import Console

from shared.runtime.progress import EVERY_S, Remaining, shown


class Hand:
    """A clock that is set by hand, and what was said."""

    def __init__(self) -> None:
        self.now = 0.0
        self.said: list[str] = []

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    clock = Hand()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def stage(hand: Hand, total: float, **given: Any) -> Remaining:
    return Remaining("vanilla", total, clock=hand, say=hand.said.append, **given)


def test_a_line_every_half_minute_says_share_rate_and_time_left(hand: Hand) -> None:
    one = stage(hand, 6000)
    for _ in range(59):
        hand.now += 1
        one.advance(20)
    assert EVERY_S == 30
    assert hand.said == ["vanilla: 600 of 6,000 (10.0%), 20 a second, 0:04:30 left"]
    hand.now += 1
    one.advance(4820)
    assert hand.said[1:] == ["vanilla: 6,000 of 6,000 (100.0%), 100 a second, 0:00:00 left"]


def test_slow_work_is_counted_by_the_minute_and_short_work_says_nothing(hand: Hand) -> None:
    one = stage(hand, 4)
    hand.now = 120
    one.advance()
    assert hand.said == ["vanilla: 1 of 4 (25.0%), 0.5 a minute, 0:06:00 left"]
    short = stage(hand, 4)
    hand.now += 29
    short.advance(4)
    assert len(hand.said) == 1


def test_what_an_earlier_run_did_counts_for_the_share_and_not_for_the_rate(hand: Hand) -> None:
    one = stage(hand, 100, done=50)
    hand.now = 50
    one.advance(25)
    assert hand.said == ["vanilla: 75 of 100 (75.0%), 30 a minute, 0:00:50 left"]


def test_a_run_that_ends_by_its_time_says_the_share_of_that(hand: Hand) -> None:
    one = stage(hand, 1000, share=0.2)
    hand.now = 60
    one.reached(30, share=0.5, note="loss 0.25")
    assert hand.said == ["vanilla: 30 of 1,000 (50.0%), 30 a minute, 0:01:40 left; loss 0.25"]


def test_lines_go_to_a_file_and_a_stage_of_unknown_length_says_that_it_begins(hand: Hand) -> None:
    file = io.StringIO()
    with shown(Console(file=file, width=40)) as bar:
        bar("preparing: the trace [a].csv", None)(1)
        bar("embeddings", 0)(1)
        advance = bar("decisions of a policy with a long name", 280_000, 1000)
        hand.now = 31.0
        advance(2790)
    assert file.getvalue() == (
        "preparing: the trace [a].csv …\n"
        "decisions of a policy with a long name: 3,790 of 280,000 (1.4%), 90 a second, 0:51:09 left\n"
    )


def test_a_terminal_has_a_bar_for_each_stage() -> None:
    file = io.StringIO()
    with shown(Console(file=file, width=100, force_terminal=True, force_interactive=True)) as bar:
        bar("preparing", None)
        advance = bar("decisions", 10)
        bar("nothing to do", 0)
        advance(10)
    said = file.getvalue()
    assert "decisions" in said
    assert "10/10" in said
    assert "nothing to do" not in said
