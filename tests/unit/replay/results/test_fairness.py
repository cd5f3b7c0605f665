from __future__ import annotations

import numpy as np
import pytest

from services.replay.results.fairness import fairness, jain


def test_jains_index_is_one_where_all_save_alike_and_one_nth_where_one_saves_everything() -> None:
    assert jain(np.full(7, 0.3)) == pytest.approx(1)
    assert jain(np.array([0.0, 0.0, 0.4, 0.0])) == pytest.approx(1 / 4)
    assert jain(np.array([1.0, 2.0, 3.0])) == pytest.approx(36 / (3 * 14))
    assert jain(np.zeros(3)) is None


def test_users_count_once_each_and_only_those_who_asked_often_enough() -> None:
    users = np.array([0] * 10 + [2] * 20 + [3] * 9)  # nobody is user 1
    saved = np.array([0.2] * 10 + [0.4, 0.8] * 10 + [1.0] * 9)
    of = fairness(users, saved)
    assert (of["least_requests"], of["users"]) == (10, 2)
    assert of["requests"] == pytest.approx(30 / 39)
    assert of["jain"] == pytest.approx((0.2 + 0.6) ** 2 / (2 * (0.2**2 + 0.6**2)))
    assert of["saved"]["p50"] == pytest.approx(0.4)
    assert (of["curve"][0], of["curve"][-1]) == (pytest.approx(0.2), pytest.approx(0.6))
    assert of["without_any"] == 0
    assert fairness(users, saved, least=9)["users"] == 3


def test_nobody_asked_often_enough() -> None:
    assert fairness(np.arange(5), np.ones(5)) == {"least_requests": 10, "users": 0}
