"""The tenant that got the least work goes first: waits are bounded, and a pause earns nothing."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from services.gpu_worker.jobs import fair_shares
from services.gpu_worker.jobs.fair_shares import FairShares

WORK = st.floats(1.0, 100.0)
TENANTS = st.sampled_from("abcd")


@given(st.lists(st.tuples(WORK, WORK, WORK), min_size=2, max_size=60))
def test_the_work_of_tenants_that_all_wait_differs_by_their_largest_jobs(jobs: list[tuple[float, ...]]) -> None:
    shares, got, next_job = FairShares(), dict.fromkeys("abc", 0.0), Counter[str]()
    largest = {tenant: max(each[number] for each in jobs) for number, tenant in enumerate("abc")}
    while all(next_job[tenant] < len(jobs) for tenant in "abc"):
        tenant = shares.order("abc")[0]
        work = jobs[next_job[tenant]]["abc".index(tenant)]
        next_job[tenant] += 1
        got[tenant] += work
        shares.took(tenant, work)
        for one, other in ("ab", "bc", "ac"):
            assert abs(got[one] - got[other]) <= largest[one] + largest[other] + 1e-6


@given(st.lists(st.tuples(st.sets(TENANTS), WORK), max_size=60), WORK)
def test_a_tenant_that_begins_to_wait_is_served_after_one_job_of_each_other(
    before: list[tuple[set[str], float]], size: float
) -> None:
    """Whatever the others did before, and however small their jobs are."""
    shares = FairShares()
    for waiting, work in before:
        if waiting:
            shares.took(shares.order(waiting)[0], work)
    served = Counter[str]()
    while (tenant := shares.order({*"abcd", "new"})[0]) != "new":
        served[tenant] += 1
        shares.took(tenant, size)
    assert max(served.values(), default=0) <= 1


@given(st.lists(WORK, min_size=1, max_size=60))
def test_a_pause_earns_nothing(alone: list[float]) -> None:
    """A tenant that comes back is behind by the other's last job at most, however long it was away."""
    shares = FairShares()
    shares.took("back", 1.0)
    for work in alone:
        shares.took("busy", work)
    got = 0.0
    while shares.order({"back", "busy"})[0] == "back":
        shares.took("back", 1.0)
        got += 1.0
    assert got <= alone[-1] + 1.0 + 1e-9  # sums of floats


def test_one_in_four_of_each_tenants_jobs_is_its_oldest() -> None:
    shares = FairShares()
    turns = Counter[str]()
    for _ in range(8):
        for tenant in "ab":
            turns[tenant] += tenant in shares.next_is_aged()
            shares.took(tenant, 1.0)
    assert turns == {"a": 2, "b": 2}


def test_tenants_without_a_lead_are_forgotten() -> None:
    shares = FairShares()
    for number in range(3 * fair_shares.MOST_KEPT):
        shares.took(f"t{number}", 1.0)
        shares.took("busy", 2.0)
    assert len(shares._shares) <= fair_shares.MOST_KEPT + 1
