"""Facts of a window become rates, a hit rate, a K histogram and work, per lane and modality."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.global_monitor.allocation.workload import Workload, weighted_hit, workload
from services.global_monitor.demand import FORGOTTEN_S, DemandWindow
from shared.domain.messages import JobQueued, lane_of, refine_lane
from shared.domain.types import Modality

LARGE, SMALL = lane_of("large"), lane_of("small")


def queued(job: str, lane: str, k: int = 0, steps: int = 50, modality: Modality = Modality.IMAGE) -> JobQueued:
    return JobQueued(job, lane, "large", "image" if k else "noise", start_step=k, steps=steps, modality=modality)


def window(*facts: JobQueued, at: float = 0.0, window_s: float = 100.0) -> DemandWindow:
    heard = DemandWindow(window_s, at)
    for fact in facts:
        heard.queued(fact, at + 1.0)
    return heard


def test_rates_hit_rate_and_k_histogram_per_lane() -> None:
    hits = [queued(f"h{k}-{n}", refine_lane(), k) for n, k in enumerate((10, 10, 30))]
    demand = window(*hits, queued("m", LARGE), queued("l", LARGE, k=25)).demand(100.0)
    large, refine = demand.lanes
    assert (large.lane, refine.lane, refine.modality) == (LARGE, refine_lane(), "image")
    assert demand.requests_per_s == pytest.approx(0.05)
    assert demand.hit_rate == pytest.approx(0.8)  # a latent hit in the large lane is a hit too
    assert refine.share_by_k == pytest.approx({10: 2 / 3, 30: 1 / 3})
    assert demand.share_by_k == pytest.approx({0: 0.2, 10: 0.4, 25: 0.2, 30: 0.2})
    assert refine.work_per_s == pytest.approx((0.8 + 0.8 + 0.4) / 100)
    assert large.work_per_s == pytest.approx(1.5 / 100)


def test_a_hit_that_only_a_small_model_may_refine_is_its_work_wherever_it_waits() -> None:
    hit = queued("both", refine_lane(), 10)
    demand = window(hit, replace(hit, job_id="one", only="small"), queued("m", LARGE)).demand(100.0)
    assert [lane.lane for lane in demand.lanes] == [LARGE, refine_lane(), SMALL]
    work = workload(demand, "large", ("small",))
    assert (work.miss, work.hit, work.small) == pytest.approx((0.01, 0.008, 0.008))


def test_other_schedules_count_by_their_steps() -> None:
    demand = window(queued("a", refine_lane(), k=2, steps=10)).demand(100.0)
    assert demand.lanes[0].share_by_k == {10: 1.0}
    assert demand.lanes[0].work_per_s == pytest.approx(8 / 50 / 100)


def test_a_model_with_a_t_of_its_own_does_a_full_generation_in_so_many_steps() -> None:
    heard = DemandWindow(100.0, 0.0, {"turbo": 10.0})
    hit = replace(queued("a", refine_lane(), k=3, steps=10), model="turbo")
    for fact in (hit, queued("b", refine_lane(), k=15)):
        heard.queued(fact, 1.0)
    (lane,) = heard.demand(100.0).lanes
    assert lane.share_by_k == {15: 1.0}
    assert lane.work_per_s == pytest.approx(2 * 0.7 / 100)  # 7 of 10 steps, and 35 of 50


def test_clips_do_not_count() -> None:
    clips = [queued(str(number), lane_of("clips"), 10, modality=Modality.VIDEO) for number in range(3)]
    demand = window(*clips, queued("i", LARGE), queued("j", LARGE)).demand(10.0, in_hand=1)
    (lane,) = demand.lanes
    assert (lane.lane, lane.modality, lane.waiting) == (LARGE, "image", 1.0)
    assert (demand.requests_per_s, demand.share_by_k, demand.hit_rate) == (0.2, {0: 1.0}, 0.0)


def test_what_is_older_than_the_window_counts_no_more() -> None:
    heard = window(queued("a", LARGE))
    assert heard.demand(100.0).requests_per_s == pytest.approx(0.01)
    heard.ended("a")
    assert heard.demand(102.0).lanes == ()


def test_right_after_the_start_the_rate_is_over_the_time_there_was() -> None:
    assert window(queued("a", LARGE)).demand(10.0).requests_per_s == pytest.approx(0.1)


def test_what_nobody_holds_waits_and_what_nobody_ended_is_forgotten() -> None:
    heard = window(*(queued(str(n), LARGE) for n in range(10)))
    assert heard.demand(10.0, in_hand=4).lanes[0].waiting == pytest.approx(6)
    for n in range(6):
        heard.ended(str(n))
    assert heard.demand(10.0, in_hand=4).lanes[0].waiting == 0
    assert heard.demand(10.0).lanes[0].waiting == pytest.approx(4)
    assert heard.demand(FORGOTTEN_S + 2.0).lanes == ()


def test_after_a_gap_in_the_facts_only_what_comes_then_waits() -> None:
    heard = window(*(queued(str(n), LARGE) for n in range(10)))
    heard.missed()
    heard.ended("3")
    heard.queued(queued("new", LARGE), 5.0)
    (lane,) = heard.demand(10.0).lanes
    assert lane.waiting == pytest.approx(1)
    assert lane.requests_per_s == pytest.approx(1.1)


def test_workload_by_lane_with_headroom_and_what_waits() -> None:
    facts = [queued("m", LARGE), queued("h", refine_lane(), k=25), queued("n", SMALL), queued("other", "generate.x")]
    demand = window(*facts).demand(100.0, in_hand=4)
    assert workload(demand, "large", ["small"]) == Workload(miss=0.01, hit=0.005, small=0.01)
    assert workload(demand, "large", ["small"], headroom=0.1).miss == pytest.approx(0.011)
    behind = window(*facts).demand(100.0)
    assert workload(behind, "large", ["small"], catch_up_s=50).hit == pytest.approx(0.005 + 0.5 / 50)


def test_weighted_hits_of_eq_11() -> None:
    assert weighted_hit(0.6, large_rate=1.0, small_rate=3.0) == pytest.approx(0.2)
