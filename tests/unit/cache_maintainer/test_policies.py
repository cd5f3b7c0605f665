"""The eviction policies behind a running maintainer."""

from __future__ import annotations

import random

import pytest

from services.cache_maintainer.eviction.afterimage import ExpectedStateStore
from services.cache_maintainer.eviction.aging import AgingStateStore
from services.cache_maintainer.eviction.scored import Offer, StateStore, Wish
from services.retriever.selection import largest_present
from shared.domain.types import Candidate, Plan, PlanSource, State
from shared.runtime.clock import ManualClock
from shared.runtime.settings import Settings
from tests.unit.cache_maintainer.house import house
from tests.unit.cached import request


@pytest.mark.parametrize(
    ("policy", "kind"), [("lrbu", AgingStateStore), ("afterimage", ExpectedStateStore), ("lru", StateStore)]
)
async def test_every_policy_of_the_settings_keeps_the_budget(small: Settings, policy: str, kind: type) -> None:
    async with house(small.model_copy(update={"eviction_policy": policy})) as home:
        assert type(home.service.cache.shelf) is kind
        for number in range(6):
            await home.finish(request(f"prompt {number}"), number)
        totals = await home.backends.catalog.entries.totals()
        assert 0 < totals.bytes <= 1000
        assert totals.states == len(home.service.cache.shelf)


async def test_the_afterimage_policy_decides_as_its_shelf_alone(small: Settings, clock: ManualClock) -> None:
    """What the maintainer reads off jobs is what a replay tells the shelf: the same states are left."""
    alone = ExpectedStateStore(small.capture_steps)
    rng = random.Random(5)
    afterimage = small.model_copy(update={"eviction_policy": "afterimage", "cache_max_bytes": 2000})
    async with house(afterimage, clock) as home:
        for number in range(25):
            clock.advance(3.0)
            found = []
            for near in sorted({one.entry_id for one in alone})[-3:]:
                wished = rng.choice((0, 5, 15, 25))
                found.append(Candidate(near, "latent", 0.9, wished, largest_present(_steps(alone, near), wished)))
            best = max(found, key=lambda one: one.start_step, default=None)
            start = best.start_step if best else 0
            steps = tuple(k for k in (5, 10, 15, 20, 25) if k > start)
            asked = request(f"prompt {number}", user=f"u{number % 4}")
            plan = Plan(PlanSource.LATENT if start else PlanSource.NOISE, "noop", start, candidates=tuple(found))
            name = await home.finish(asked, number, steps=steps, plan=plan)
            alone.looked_up([Wish(one.entry_id, one.allowed_step, one.start_step) for one in found], clock.now())
            kept = alone.admit(Offer(name, asked.user, start, steps, (100,) * len(steps), clock.now()), 2000)
            alone.make_room(len(kept), 100 * len(kept), 2000, clock.now())
            for step in kept:
                alone.insert(State(name, step, "", 100, "fp16", "", 0, clock.now(), clock.now()))
            served = {(one.entry_id, one.step) for one in home.service.cache.shelf}
            assert served == {(one.entry_id, one.step) for one in alone}
        assert 10 <= len(served) <= 20
        assert home.service.cache.counts.evicted > 0


def _steps(shelf: StateStore, name: str) -> list[int]:
    return [one.step for one in shelf if one.entry_id == name]


async def test_runs_of_any_length_share_the_afterimage_policy(small: Settings) -> None:
    """Steps of T = 20 are no K of 50: they are weighed as what they were scaled from, and leave as themselves."""
    async with house(small.model_copy(update={"eviction_policy": "afterimage"})) as home:
        jobs = [
            await home.finish(request(f"prompt {number}", steps=total), number, steps=steps)
            for number, (total, steps) in enumerate([(20, (2, 4, 6, 8, 10)), (50, (5, 10)), (7, (1, 2, 3))] * 4)
        ]
        held = {job: await home.steps(job) for job in jobs}
        assert {(one.entry_id, one.step) for one in home.service.cache.shelf} == {
            (job, step) for job, steps in held.items() for step in steps
        }
        assert (await home.backends.catalog.entries.totals()).bytes <= 1000
        assert any(step in (4, 6, 8) for steps in held.values() for step in steps)
