"""Who may wait, and when to come back."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.arrivals import poisson
from services.gateway.admission import Admission, FinishRate, QueueLength, RetryAfter, retry_delay_s
from services.gateway.obstacles import full_disk
from shared.catalog.jobs.checks import CHECKS
from shared.domain.errors import OverloadedError


def door(max_queued: int, waiting: dict[str, int]) -> Admission:
    async def count() -> dict[str, int]:
        return dict(waiting)

    return Admission(max_queued, count)


async def test_one_below_the_limit_is_let_in_and_the_limit_is_not() -> None:
    await door(10, {"a": 9}).admit("a", 1, now=0.0)
    await door(10, {"a": 6}).admit("a", 4, now=0.0)
    with pytest.raises(
        OverloadedError, match="7 jobs are waiting and max_queued is 10, this request asks for 4; retry"
    ):
        await door(10, {"a": 7}).admit("a", 4, now=0.0)
    full = door(10, {"a": 10})
    for _ in range(2):
        full.rate.finished(-1.0)
    with pytest.raises(OverloadedError, match="10 jobs are waiting and max_queued is 10; retry") as caught:
        await full.admit("a", 1, now=0.0)
    assert caught.value.retry_after_s == 0.5  # one place, two jobs a second


async def test_a_full_queue_still_takes_a_tenant_below_its_share() -> None:
    waiting = {"flood": 10, CHECKS: 1}
    full = door(10, waiting)
    await full.admit("quiet", 5, now=0.0)
    with pytest.raises(OverloadedError, match=r"16 jobs are waiting .* 5 of them are of this tenant, whose share is 5"):
        await full.admit("quiet", 1, now=0.0)
    with pytest.raises(OverloadedError, match="10 of them are of this tenant"):
        await full.admit("flood", 1, now=0.0)
    assert full.above_share("flood")
    assert not full.above_share("quiet")
    full.arrived("quiet", 5)
    waiting.update(flood=4, quiet=5)
    await full.admit("flood", 1, now=1.0)  # the flood is below its share again


async def test_without_another_tenant_the_whole_queue_is_its_share() -> None:
    alone = door(10, {"a": 10})
    with pytest.raises(OverloadedError):
        await alone.admit("a", 1, now=0.0)
    assert not alone.above_share("a")


async def test_a_flood_shares_its_counts_and_none_is_older_than_its_call() -> None:
    counts = 0
    release = asyncio.Event()

    async def count() -> dict[str, int]:
        nonlocal counts
        counts += 1
        await release.wait()
        return {"flood": 10}

    full = Admission(10, count)
    calls = [asyncio.create_task(full.admit("flood", 1, now=0.0)) for _ in range(50)]
    await asyncio.sleep(0)
    late = [asyncio.create_task(full.admit("flood", 1, now=0.0)) for _ in range(50)]
    await asyncio.sleep(0)
    assert counts == 1
    release.set()
    ended = await asyncio.gather(*calls, *late, return_exceptions=True)
    assert all(isinstance(one, OverloadedError) for one in ended)
    assert counts == 2


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 4)), max_size=200), st.integers(4, 40))
async def test_places_are_bounded_and_no_tenant_takes_anothers(asked: list[tuple[str, int]], limit: int) -> None:
    """Nobody leaves: the worst case. Work-conserving: while the queue has room, nobody is refused."""
    places = door(limit, {})
    held = Counter[str]()
    for tenant, count in asked:
        try:
            await places.admit(tenant, count, now=0.0)
        except OverloadedError:
            assert held.total() + count > limit
            share = limit // len({tenant, *held})
            assert held[tenant] + count > share or held.total() + count > 2 * limit
        else:
            held[tenant] += count
    assert held.total() <= 2 * limit


@given(st.integers(0, 10_000), st.integers(1, 10_000), st.floats(0, 1e6))
def test_the_delay_is_always_sane_and_longer_for_longer_queues(queued: int, limit: int, rate: float) -> None:
    delay = retry_delay_s(queued, limit, rate)
    assert 0.1 <= delay <= 60
    assert retry_delay_s(queued + 1, limit, rate) >= delay


def test_everyone_sent_away_gets_a_turn_of_his_own() -> None:
    away = RetryAfter()
    assert [away.delay_s(10, 10, 4.0, now=0.0) for _ in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert away.delay_s(10, 10, 4.0, now=0.5) == 0.75  # the turn after the one at 1.0
    assert away.delay_s(10, 10, 4.0, now=9.0) == 0.25  # nobody is before him any more


def test_turns_far_ahead_are_not_given_out() -> None:
    """Most may never come back; those who do then come as evenly as they were sent away."""
    away = RetryAfter()
    delays = [away.delay_s(10, 10, 2.0, now=number / 10) for number in range(100)]
    assert max(delays) == delays[-1] == 10.0
    assert delays == sorted(delays)
    assert away.delay_s(10, 10, 2.0, now=30.0) == 0.5  # a burst that is over is forgotten


def test_while_no_rate_is_known_nobody_waits_long() -> None:
    away = RetryAfter()
    assert {away.delay_s(10, 10, 0.0, now=0.0) for _ in range(50)} == {1.0}


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1e4)), max_size=50), st.integers(1, 500))
def test_a_turn_is_never_sooner_than_a_place_nor_out_of_bounds(steps: list[tuple[float, float]], over: int) -> None:
    away, now = RetryAfter(), 0.0
    for pause, rate in steps:
        now += pause
        delay = away.delay_s(over, 1, rate, now)
        assert retry_delay_s(over, 1, rate) <= delay <= 60.0


def refusals_per_s(delay_of: Callable[[float], float], *, per_s: float = 5.0, offered: float = 3.0) -> float:
    """A full service that takes `per_s` and is offered three times that by clients who come back for half a minute."""
    lot = random.Random(1)
    coming = [(at, at + 30.0) for at in poisson(offered * per_s, round(offered * per_s * 60), seed=1)]
    refused, next_place = 0, 0.0
    heapq.heapify(coming)
    while coming and coming[0][0] < 60.0:
        now, gives_up = heapq.heappop(coming)
        if now >= next_place:
            next_place = max(next_place, now - 1.0) + 1 / per_s
        else:
            refused += 1
            again = now + delay_of(now) * lot.uniform(1.0, 1.3)
            if again < gives_up:
                heapq.heappush(coming, (again, gives_up))
    return refused / 60.0


def test_clients_who_come_back_do_not_make_refusing_dearer_than_drawing() -> None:
    away = RetryAfter()
    in_turn = refusals_per_s(lambda now: away.delay_s(10, 10, 5.0, now))
    assert in_turn < 40
    assert refusals_per_s(lambda _: retry_delay_s(10, 10, 5.0)) > 10 * in_turn  # what everyone's same delay comes to


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
    queue.counted({"a": 2, "b": 1}, now=0.0)
    queue.arriving("a")
    queue.arriving("a")
    assert queue.length == 5
    queue.arrived("a")
    assert queue.length == 5  # written, but not in the count
    queue.counted({"a": 4}, now=2.0)
    assert queue.length == 5  # one still on its way
    queue.arrived("a")
    assert not queue.stale(2.5, limit=100)


def test_a_count_keeps_longer_while_the_queue_is_far_from_full_and_never_refuses_when_old() -> None:
    queue = QueueLength(stale_after_s=0.25, relaxed_s=2.0)
    queue.counted({"a": 4}, now=0.0)
    assert not queue.stale(1.9, limit=10)
    assert queue.stale(2.1, limit=10)
    queue.counted({"a": 5}, now=10.0)
    assert not queue.stale(10.2, limit=10)
    assert queue.stale(10.3, limit=10)
    queue.counted({"a": 10}, now=20.0)
    assert queue.stale(20.0, limit=10)


def test_a_full_disk_is_named_with_its_limit() -> None:
    assert not full_disk(100, 100)
    assert full_disk(99 << 20, 100 << 20).startswith("the data directory's disk has 99 MiB left; min_free_bytes needs")
