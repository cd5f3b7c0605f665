"""Who may wait, and when to come back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.admission import FinishRate, QueueLength, check_disk, check_queue, retry_delay_s
from shared.errors import OverloadedError, StorageFullError


def test_one_below_the_limit_is_let_in_and_the_limit_is_not() -> None:
    check_queue(9, 10, 1.0)
    with pytest.raises(OverloadedError, match="10 jobs are waiting and max_queued is 10") as caught:
        check_queue(10, 10, 2.0)
    assert caught.value.retry_after_s == 0.5  # one place, two jobs a second


@given(st.integers(0, 10_000), st.integers(1, 10_000), st.floats(0, 1e6))
def test_the_delay_is_always_sane_and_longer_for_longer_queues(queued: int, limit: int, rate: float) -> None:
    delay = retry_delay_s(queued, limit, rate)
    assert 0.1 <= delay <= 60
    assert retry_delay_s(queued + 1, limit, rate) >= delay


def test_the_rate_counts_what_finished_lately() -> None:
    rate = FinishRate(window_s=10.0)
    assert rate.per_s(0.0) == 0.0
    for second in range(5):
        rate.finished(float(second))
    assert rate.per_s(5.0) == 1.0
    assert rate.per_s(100.0) == 0.0


def test_requests_on_their_way_count_before_their_rows_are_written() -> None:
    queue = QueueLength(stale_after_s=1.0)
    assert queue.stale(0.0, limit=100)
    queue.counted(3, now=0.0)
    queue.arriving()
    queue.arriving()
    assert queue.length == 5
    queue.arrived()
    assert queue.length == 5  # written, but not in the count
    queue.counted(4, now=2.0)
    assert queue.length == 5  # one still on its way
    queue.arrived()
    assert not queue.stale(2.5, limit=100)


def test_a_count_keeps_longer_while_the_queue_is_far_from_full_and_never_refuses_when_old() -> None:
    queue = QueueLength(stale_after_s=0.25, relaxed_s=2.0)
    queue.counted(4, now=0.0)
    assert not queue.stale(1.9, limit=10)
    assert queue.stale(2.1, limit=10)
    queue.counted(5, now=10.0)
    assert not queue.stale(10.2, limit=10)
    assert queue.stale(10.3, limit=10)
    queue.counted(10, now=20.0)
    assert queue.stale(20.0, limit=10)


def test_a_full_disk_is_refused_with_a_delay() -> None:
    check_disk(100, 100)
    with pytest.raises(StorageFullError, match="min_free_bytes") as caught:
        check_disk(99, 100)
    assert caught.value.retry_after_s
