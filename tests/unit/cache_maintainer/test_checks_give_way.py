"""When a live check runs, and when it gives way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.cache_maintainer import live_checks
from services.cache_maintainer import service as maintainer
from shared.catalog.jobs.checks import CHECKS
from shared.domain.messages import JobQueued, JobSucceeded, lane_of
from shared.domain.types import CacheMode, Job, Plan, PlanSource
from shared.runtime.settings import Settings
from tests.unit.cache_maintainer.house import Home, home, png
from tests.unit.cached import finished_job, request, unit

HIT = Plan(PlanSource.LATENT, "noop", start_step=10, relation="edit")


async def hit(at: Home, **changes: object) -> Job:
    asked = request("a red cube", **{"priority": 9, "deadline_s": 5.0, **changes})
    job = await finished_job(at.backends, asked, unit(1), plan=HIT, picture=png(1))
    await at.backends.bus.publish(JobSucceeded(job.id, 1))
    return job


@pytest.fixture
def checking(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(maintainer, "EVERY_S", 0.02)
    monkeypatch.setattr(live_checks, "POLL_S", 0.02)
    return settings.model_copy(update={"check_share": 1.0})


async def test_a_check_gives_way_to_a_clients_job_and_is_tried_again(checking: Settings) -> None:
    async with home(checking) as at:
        jobs, asked = at.backends.catalog.jobs, await hit(at)
        await at.until(jobs.left_checks)
        (first,) = [await jobs.get(name) for name in await jobs.left_checks()]
        assert (first.plan.source, first.lane) == (PlanSource.NOISE, lane_of("noop"))
        alone = replace(asked.request, tenant=CHECKS, cache=CacheMode.OFF, user="", priority=0, deadline_s=None)
        assert first.request == alone
        client = await jobs.accept(Job("client", asked.request, HIT, first.state, lane=first.lane))
        await at.backends.bus.publish(JobQueued(client[0].id, first.lane, "noop", "latent"))

        async def gone() -> bool:
            return first.id not in await jobs.left_checks()

        await at.until(gone)
        assert await jobs.left_checks() == []  # the client's job still waits
        await jobs.cancel(client[0].id)
        await at.until(jobs.left_checks)


async def test_a_start_that_the_client_chose_is_not_checked(checking: Settings) -> None:
    async with home(checking) as at:
        await hit(at, from_job="another")
        await at.until(lambda: _none_sampled(at))
        assert await at.backends.catalog.jobs.left_checks() == []


async def _none_sampled(at: Home) -> bool:
    return at.maintainer._checks._shown and not at.maintainer._checks._sampled
