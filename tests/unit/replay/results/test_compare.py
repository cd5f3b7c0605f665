from __future__ import annotations

import numpy as np
import pytest

from services.replay.results.compare import interval, resampled


def test_what_one_user_asks_is_no_independent_evidence() -> None:
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(40), 50)
    of_user = np.repeat(rng.random(40), 50)  # all of a user's requests go alike
    low, high = interval(of_user, users)
    assert low < of_user.mean() < high
    # of 40 independent values, not of 2,000: the standard error is that of the users' means
    error = np.std(of_user[::50]) / np.sqrt(40)
    assert (high - low) == pytest.approx(2 * 1.96 * error, rel=0.15)
    alone_low, alone_high = interval(of_user, np.arange(2000))
    assert high - low > 4 * (alone_high - alone_low)


def test_users_count_by_their_requests() -> None:
    users = np.array([0] * 90 + [1] * 10)
    means = resampled(np.array([1.0] * 90 + [0.0] * 10), users, rounds=300)
    assert set(np.round(means, 6)) == {0.0, 0.9, 1.0}


def test_a_request_counts_by_its_weight_and_users_by_all_of_theirs() -> None:
    users, weights = np.array([0, 0, 1]), np.array([150.0, 50.0, 10.0])
    means = resampled(np.array([0.5, 0.0, 1.0]), users, rounds=300, weights=weights)
    assert set(np.round(means, 6)) == {round(75 / 200, 6), round(85 / 210, 6), 1.0}
