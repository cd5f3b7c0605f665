import math

import pytest

from services.match_predictor.accuracy import WINDOW, Confusion


def judged(*outcomes: tuple[bool | None, bool | None], share: float = 0.1) -> Confusion:
    confusion = Confusion()
    for predicted, found in outcomes:
        confusion = confusion.judge(predicted, found, share)
    return confusion


def test_nothing_known_is_not_a_number() -> None:
    assert math.isnan(Confusion().precision)
    assert math.isnan(Confusion().recall)
    assert judged((None, True), (True, None)) == Confusion()


def test_a_sampled_miss_stands_for_its_share() -> None:
    # 18 hits of 20 predicted; 3 predicted misses looked up at a share of .1, one of them was a hit: it stands for 10
    confusion = judged(*[(True, True)] * 18, *[(True, False)] * 2, (False, True), (False, False), (False, False))
    assert confusion.precision == pytest.approx(0.9)
    assert confusion.recall == pytest.approx(18 / 28)
    assert confusion.judged == 23


def test_the_past_fades() -> None:
    confusion = judged(*[(True, False)] * WINDOW, *[(True, True)] * WINDOW)
    assert confusion.judged == 2 * WINDOW
    assert confusion.precision == pytest.approx(2 / 3)  # without fading .5
