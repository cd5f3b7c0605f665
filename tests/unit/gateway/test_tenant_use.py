"""A tenant's jobs and their work stay within its limits, whatever comes together."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.tenant_use import TenantUse
from shared.catalog.jobs.lanes import Taken
from shared.domain.errors import InvalidRequestError, OverloadedError
from shared.runtime.settings.tenants import NO_LIMITS, TenantLimits

LIMITS = TenantLimits(jobs=5, pixel_steps=1000)
Asked = tuple[int, int, bool]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 600), st.booleans()), max_size=40))
async def test_requests_that_come_together_stay_within_the_limits(asked: list[Asked]) -> None:
    """Each waits for its count and its row; some fail before they have one."""
    rows = Taken()

    async def taken(tenant: str) -> Taken:
        await asyncio.sleep(0)
        return rows

    use = TenantUse(lambda tenant: LIMITS, taken)

    async def request(jobs: int, pixel_steps: int, fails: bool) -> None:
        nonlocal rows
        try:
            await use.admit("a", jobs, pixel_steps)
            await asyncio.sleep(0)
            if not fails:
                rows = Taken(rows.jobs + jobs, rows.pixel_steps + pixel_steps)
        except OverloadedError:
            pass
        finally:
            use.arrived("a", jobs, pixel_steps)

    await asyncio.gather(*(request(*one) for one in asked))
    assert rows.jobs <= 5
    assert rows.pixel_steps <= 1000
    rows = Taken()
    await use.admit("a", 5, 1000)  # nothing is left over of what ended


async def test_refusals_say_which_limit_and_tenants_without_one_ask_nothing() -> None:
    async def full(tenant: str) -> Taken:
        return Taken(4, 900)

    use = TenantUse(lambda tenant: LIMITS, full)
    with pytest.raises(OverloadedError, match=r"jobs that wait or run: .* on their way, 4 and may have 5") as refused:
        await use.admit("a", 2, 10)
    assert refused.value.retry_after_s == 1.0
    use.arrived("a", 2, 10)
    with pytest.raises(OverloadedError, match=r"on their way, 900 and may have 1000 .* asks for 101"):
        await use.admit("a", 1, 101)
    use.arrived("a", 1, 101)
    for jobs, pixel_steps, field in ((6, 1, "n: must be at most 5"), (1, 1001, r"steps: .* at most 1000 for this")):
        with pytest.raises(InvalidRequestError, match=field):
            await use.admit("a", jobs, pixel_steps)
        use.arrived("a", jobs, pixel_steps)
    await use.admit("a", 1, 100)

    async def never(tenant: str) -> Taken:
        raise AssertionError(tenant)

    await TenantUse(lambda tenant: NO_LIMITS, never).admit("a", 10**6, 10**12)
