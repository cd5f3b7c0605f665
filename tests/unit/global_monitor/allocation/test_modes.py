"""Both modes against cases worked by hand and against every possible allocation, and the corner cases that the paper
leaves open (docs/architecture.md, Services)."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.global_monitor.allocation.fleet import SPLITS, Capacity, Group, capacity, feasible, splits, sustained
from services.global_monitor.allocation.modes import BACK_UP, allocate
from services.global_monitor.allocation.quality_mode import most_large
from services.global_monitor.allocation.throughput_mode import balanced
from services.global_monitor.allocation.workload import Workload

rates = st.floats(0.1, 10.0)
works = st.builds(Workload, miss=st.floats(0, 30), hit=st.floats(0, 30), small=st.sampled_from([0.0, 0.0, 2.0]))
groups_ = st.lists(st.builds(Group, count=st.integers(0, 3), large=rates, small=rates), min_size=1, max_size=3)


def test_quality_by_hand() -> None:
    """N = 16, P_large = 1, P_small = 4 requests a minute, R = 20, H = .75, every k = 25 of 50.

    W_miss = 5 (eq. 7), W_hit = 15 · .5 = 7.5 (eq. 8). N_large − 5 + 4·(16 − N_large) ≥ 7.5 ⇔ N_large ≤ 17.2: all 16.
    At R = 40: W_miss = 10, W_hit = 15, N_large − 10 + 64 − 4·N_large ≥ 15 ⇔ N_large ≤ 13.
    At R = 64: W_miss = 16, W_hit = 24: eq. 7 wants all 16, eq. 9 then has nothing for hits: no allocation.
    """
    fleet = [Group(16, 1.0, 4.0)]
    assert most_large(fleet, Workload(5, 7.5)) == (16,)
    assert most_large(fleet, Workload(10, 15)) == (13,)
    assert most_large(fleet, Workload(16, 24)) is None
    assert most_large(fleet, Workload()) == (16,)
    assert most_large([Group(2, 1.0, 1.0)], Workload(0, 0, small=2)) is None  # one must stay large


def test_throughput_by_hand() -> None:
    """W_miss = 10, W_hit = 15, P_small/P_large = 4: W_weighted = 3.75 (eq. 11), N_large = 10/13.75 · 16 (eq. 12)."""
    assert balanced([Group(16, 1.0, 4.0)], Workload(10, 15)) == pytest.approx(10 / 13.75 * 16)
    assert balanced([Group(8, 1.0, 4.0), Group(8, 1.0, 4.0)], Workload(10, 15)) == pytest.approx(10 / 13.75 * 16)
    assert balanced([Group(16, 1.0, 4.0)], Workload()) is None
    assert balanced([Group(16, 1.0, 0.0)], Workload(10, 15)) is None


def test_a_rounded_share_that_holds_up_the_rest_is_rounded_the_other_way() -> None:
    """N = 16, P_large = 1, P_small = 4, W_miss = 1.5, W_hit = 60: N_large = 1.5/16.5 · 16 = 1.45 (eq. 12).

    One large worker does 1/1.5 = .67 of the misses, and 15 small ones all hits; with two, 14 small ones do 56/60 = .93
    of the hits, and all misses are done. At a third of that one large worker is enough, and eq. 12 stands as it is.
    """
    fleet = {"small": [Group(16, 1.0, 4.0)]}
    assert allocate(16, fleet, Workload(1.5, 60), "throughput").large == 2
    assert allocate(16, fleet, Workload(0.5, 20), "throughput").large == pytest.approx(1.5 / 16.5 * 16)


@given(st.integers(2, 12), rates, rates, st.floats(0.01, 30), st.floats(0.01, 60))
@settings(max_examples=300)
def test_no_neighbour_of_throughput_modes_whole_number_gets_more_of_undone_work_done(
    workers: int, large: float, small: float, miss: float, hit: float
) -> None:
    group, work = Group(workers, large, small), Workload(miss, hit)

    def carried(count: int) -> float:
        return sustained(capacity([group], (count,)), work, large_refines=False)

    found = math.floor(allocate(workers, {"small": [group]}, work, "throughput").large + 0.5)
    beside = [carried(count) for count in (found - 1, found + 1) if 1 <= count < workers]
    assert carried(found) >= 1 or all(other <= carried(found) * (1 + 1e-6) for other in beside)


@given(groups_, works)
@settings(max_examples=300)
def test_quality_is_the_optimum_of_eq_10_over_all_allocations(groups: list[Group], work: Workload) -> None:
    workers = [group for group in groups for _ in range(group.count)]
    best = -1
    for larges in itertools.product((True, False), repeat=len(workers)):
        has = Capacity(
            sum(group.large for group, is_large in zip(workers, larges, strict=True) if is_large),
            sum(group.small for group, is_large in zip(workers, larges, strict=True) if not is_large),
        )
        if any(larges) and feasible(has, work):
            best = max(best, sum(larges))
    found = most_large(groups, work)
    assert (-1 if found is None else sum(found)) == best
    assert found is None or feasible(capacity(groups, found), work)


@given(st.integers(2, 40), rates, rates, st.floats(0.01, 30), st.floats(0.01, 30))
def test_eq_12_is_where_both_kinds_of_work_are_sustained_alike(
    workers: int, large: float, small: float, miss: float, hit: float
) -> None:
    wanted = balanced([Group(workers, large, small)], Workload(miss, hit))
    assert wanted is not None
    assert wanted * large / miss == pytest.approx((workers - wanted) * small / hit)


def test_a_fleet_of_too_many_kinds_is_split_by_who_is_best_at_the_large_model() -> None:
    groups = [Group(2, 1.0 + at, 5.0) for at in range(12)]
    assert 3 ** len(groups) > SPLITS
    assert list(splits(groups, 3)) == [(*[0] * 10, 1, 2)]
    assert len(list(splits(groups))) == 25


# ---- corner cases


SLOW_FAST = {"sdxl": [Group(4, 1.0, 2.0)], "sana": [Group(4, 1.0, 8.0)]}


def test_where_no_split_meets_the_demand_eq_12_with_the_fastest_small_model() -> None:
    target = allocate(4, SLOW_FAST, Workload(8, 32), "quality")
    assert (target.small, target.mode) == ("sana", "throughput")
    assert target.large == pytest.approx(8 / (32 / 8 + 8) * 4)
    assert allocate(4, SLOW_FAST, Workload(8, 1), "quality").large == 3  # 3.9 by eq. 12, and one small for the hits


def test_steps_down_when_the_better_small_model_cannot_carry_it_and_back_up_with_a_margin() -> None:
    light, heavy = Workload(1, 4), Workload(1, 7.5)
    assert allocate(4, SLOW_FAST, light, "quality", small="sdxl").small == "sdxl"
    assert allocate(4, SLOW_FAST, heavy, "quality", small="sdxl").small == "sana"
    just = Workload(1, 6)  # 1 large does 1, 3 of sdxl do 6
    assert allocate(4, SLOW_FAST, just, "quality", small="sdxl").small == "sdxl"
    assert allocate(4, SLOW_FAST, just, "quality", small="sana").small == "sana"
    assert allocate(4, SLOW_FAST, Workload(1 / BACK_UP, 5.9 / BACK_UP), "quality", small="sana").small == "sdxl"


def test_throughput_mode_steps_down_too() -> None:
    assert allocate(4, SLOW_FAST, Workload(1, 6), "throughput").small == "sdxl"
    assert allocate(4, SLOW_FAST, Workload(1, 7), "throughput").small == "sana"


@pytest.mark.parametrize("mode", ["quality", "throughput"])
@given(workers=st.integers(1, 16), work=works, large=rates, small=rates)
def test_at_least_one_large_always_and_one_small_for_hits(
    mode: str, workers: int, work: Workload, large: float, small: float
) -> None:
    target = allocate(workers, {"small": [Group(workers, large, small)]}, work, mode, large=workers)  # type: ignore[arg-type]
    assert 1 <= target.least <= target.large <= target.most <= workers
    if target.mode == "throughput" and workers > 1 and work.hit > 0:
        assert target.large <= workers - 1


def test_one_worker_or_no_small_model_is_large() -> None:
    assert allocate(1, {"small": [Group(1, 1, 9)]}, Workload(0, 5), "throughput").large == 1
    assert allocate(3, {}, Workload(0, 5), "throughput").large == 3
    assert allocate(0, {}, Workload(0, 5), "quality").large == 0


def test_with_nothing_asked_for_throughput_mode_leaves_things_as_they_are() -> None:
    assert allocate(4, SLOW_FAST, Workload(), "throughput", large=2).large == 2
    assert allocate(4, SLOW_FAST, Workload(), "quality", large=2).large == 4


def test_whoever_asks_for_the_small_model_keeps_one_small() -> None:
    target = allocate(4, SLOW_FAST, Workload(0.1, 0, small=0.1), "quality")
    assert target.large == target.most == 3


def test_sustained_is_the_multiple_that_still_fits() -> None:
    has = Capacity(4, 6)
    assert sustained(has, Workload(2, 3), large_refines=True) == pytest.approx(2)
    assert sustained(has, Workload(1, 6), large_refines=False) == pytest.approx(1)
    assert sustained(has, Workload(), large_refines=True) == float("inf")
